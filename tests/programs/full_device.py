"""A device without room: torch's own word for it, from a chosen call of an allocating function."""

import torch
from torch.overrides import TorchFunctionMode

WORDS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 64.00 GiB of "
    "which 1.21 GiB is free. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


class FullDevice(TorchFunctionMode):
    """Lets `room` calls of `torch.<name>` pass, and refuses those that follow."""

    def __init__(self, name: str, *, room: int) -> None:
        super().__init__()
        self._what, self._room = getattr(torch, name), room

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is self._what:
            self._room -= 1
            if self._room < 0:
                raise torch.OutOfMemoryError(WORDS)
        return func(*args, **(kwargs or {}))
