"""A ResNet's optimiser and statistics in the form that `inner_state` saves: tensors by name."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
)

from pww.trainer.shards import buffers

BUFFER = "state.buffer."
"""What the name of a buffer is preceded by in an inner state."""
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Optimizers:
    """One optimiser where `inner_state` expects several; buffers are part of its state."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter((self._optimizer,))

    def state_dict(self) -> dict[str, Any]:
        """Live tensors: what is loaded into them is loaded."""
        flat: dict[str, Any] = get_optimizer_state_dict(
            self._model, self._optimizer, options=FLAT
        )  # fmt: skip
        return flat | self.beside()

    def beside(self) -> dict[str, Any]:
        """The buffers, which are state whether or not the optimiser has any; live."""
        return {f"{BUFFER}{name}": buffer for name, buffer in buffers(self._model)}

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Forgets gradients."""
        self._optimizer.zero_grad(set_to_none=set_to_none)
