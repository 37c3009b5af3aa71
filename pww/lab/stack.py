"""The parameters of M workers in one matrix, a row each, and their gradients in another.

Outer loops, codecs and merges see rows; the network sees the same memory as one stacked tensor a
name.
"""

import math
from collections.abc import Mapping

import torch

Shapes = Mapping[str, tuple[int, ...]]


class Stack:
    """`values` and `grads`, (M, n), and `params`: name -> (M, *shape) over the same memory."""

    def __init__(self, shapes: Shapes, *, workers: int) -> None:
        self.shapes = dict(shapes)
        self.size = sum(math.prod(shape) for shape in shapes.values())
        self.values = torch.zeros(workers, self.size)
        self.grads = torch.zeros(workers, self.size)
        self.params: dict[str, torch.Tensor] = {}
        self._places: dict[str, torch.Tensor] = {}
        for name, columns in places(shapes).items():
            shape = (workers, *shapes[name])
            self.params[name] = self.values[:, columns].view(shape).detach().requires_grad_()
            self._places[name] = self.grads[:, columns].view(shape)

    def load(self, row: torch.Tensor) -> None:
        """Every worker gets these parameters (n,)."""
        self.values.copy_(row.expand_as(self.values))

    def backward(self, losses: torch.Tensor) -> None:
        """The gradient of each worker's loss (M,), in `grads`."""
        found = torch.autograd.grad(losses.sum(), list(self.params.values()))
        for place, grad in zip(self._places.values(), found, strict=True):
            place.copy_(grad)


def places(shapes: Shapes) -> dict[str, slice]:
    """Where each tensor is in a row."""
    found, at = {}, 0
    for name, shape in shapes.items():
        found[name] = slice(at, at := at + math.prod(shape))
    return found


def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """One model's tensors as a row."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
