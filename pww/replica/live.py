"""A model's own memory as the outer loop works on it: this rank's shard of every parameter.

Each element of a parameter is on one rank of its replica, or on several (DDP, HSDP); `share` is
what a rank counts of it when squares are added over the replica.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from pww.trainer.shards import parameters, reshard


@dataclass(frozen=True, slots=True)
class Piece:
    """This rank's part of a parameter: `values` is the memory that training changes."""

    name: str
    values: torch.Tensor  # flat
    share: float  # 1 / ranks of the replica that hold the same elements
    sharded: bool


def pieces(model: nn.Module, *, ranks: int) -> Iterator[Piece]:
    """Every parameter's part on this rank of a replica of `ranks`, in the model's order."""
    reshard(model)
    for name, parameter in parameters(model):
        own = parameter.detach()
        if isinstance(own, DTensor):
            mesh = own.device_mesh
            copies = 1
            for dim, placement in enumerate(own.placements):
                copies *= mesh.size(dim) if placement.is_replicate() else 1
            sharded = copies < mesh.size()
            yield Piece(name, _flat(own.to_local()), 1.0 / copies, sharded)
        else:
            yield Piece(name, _flat(own), 1.0 / ranks, False)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A view, never a copy: what is written to it is the model's.

    A layout that has none (channels last) is walked in the order of its memory, which is the same
    on all ranks.
    """
    if tensor.is_contiguous():
        return tensor.view(-1)
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    return tensor.permute(order).view(-1)
