"""A device that is not there: tensors that look far away and refuse what an accelerator refuses.

Each `There` holds a tensor of the host and says that it is elsewhere (on `meta`, the one other
device that every build of torch knows). Inside of `accelerator()` what is made for that device, or
copied to it, is a `There`; an operation over tensors of both sides is an error, as it is with a
real one, and every copy to the host is noted. The arithmetic is the host's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")


class There(torch.Tensor):
    """A tensor on the device."""

    here: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> "There":
        # a view of what was made in inference mode cannot be wrapped in it
        with torch.inference_mode(mode=False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, here.shape, strides=here.stride(), storage_offset=here.storage_offset(),
                dtype=here.dtype, device=DEVICE,
            )  # fmt: skip
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} outside of accelerator()")


class Accelerator(TorchDispatchMode):
    """The device while it is there; `home` are the bytes of each copy to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.home: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        far = [x for x in given if isinstance(x, There)]
        target = kwargs.get("device")
        made = DEVICE if (far and target is None) else torch.device(target or "cpu")
        if not far and made != DEVICE:
            return func(*args, **kwargs)
        name = func.name().split(".")[0]
        near = [x for x in given if not isinstance(x, There) and x.dim() > 0]
        if near and far and name != "aten::copy_":
            raise RuntimeError(f"{func}: tensors of two devices")
        if target is not None:
            kwargs = {**kwargs, "device": "cpu"}
        plain = tree_map(lambda x: x.here if isinstance(x, There) else x, (args, kwargs))
        out = func(*plain[0], **plain[1])
        if name == "aten::copy_":
            if not isinstance(args[0], There):
                self._came(args[1])
            return args[0]
        if name == "aten::_local_scalar_dense":
            return out
        if name == "aten::_to_copy" and made != DEVICE:
            self._came(args[0])
            return out
        return tree_map(lambda x: There(x) if isinstance(x, torch.Tensor) else x, out)

    def _came(self, tensor: torch.Tensor) -> None:
        self.home.append(tensor.numel() * tensor.element_size())


@contextmanager
def accelerator() -> Iterator[Accelerator]:
    """The device, for as long as the block takes."""
    with Accelerator() as device:
        yield device


def far(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device."""
    return There(tensor.clone())
