"""Buffers as their own kind: running statistics are averaged, counters keep their type.

They follow the data, not a gradient, so they never meet the outer optimiser: a momentum on a
running variance could make it negative. They are small, and travel exactly.

Means are taken over the ranks of a replica first (each saw its own part of every batch, and DDP
lets only rank 0's statistics live on), then over the replicas by their tokens; in fp64, rounded
once. Integers, such as BatchNorm's count of batches, become the largest of all.
"""

from collections.abc import Sequence

import torch
from torch import nn

from pww.errors import TrainerError
from pww.replica.circle import Circle
from pww.trainer.shards import buffers


@torch.no_grad()
def merge_buffers(model: nn.Module, *, inner: Circle, outer: Circle, tokens: Sequence[int]) -> None:
    """Collective: the same buffers on every rank of every replica, in place.

    `tokens` are the replicas', in order; one whose phase was left out has none, and counts for
    nothing here too.

    Raises:
        TrainerError: a buffer is neither of floats nor of whole numbers.
    """
    total = sum(tokens)
    counted = [bool(count) for count in tokens]
    for name, buffer in buffers(model):
        if buffer.is_complex():
            raise TrainerError(
                f"buffer {name} is {buffer.dtype}: neither a mean nor a count is defined for it; "
                "make it persistent=False, or two real ones"
            )
        if buffer.is_floating_point():
            rows = inner.gather(buffer.double())
            mine = _sum(rows, [1.0 / len(rows)] * len(rows))
            merged = _sum(outer.gather(mine), [count / total for count in tokens])
        else:
            top = _largest(inner.gather(buffer), [True] * inner.size)
            merged = _largest(outer.gather(top), counted)
        buffer.copy_(merged)


def _sum(rows: Sequence[torch.Tensor], shares: Sequence[float]) -> torch.Tensor:
    """`sum_i shares_i * rows_i`, in order; a row without a share may be nan."""
    total = torch.zeros_like(rows[0])
    for row, share in zip(rows, shares, strict=True):
        if share:
            total = total + row * share
    return total


def _largest(rows: Sequence[torch.Tensor], counted: Sequence[bool]) -> torch.Tensor:
    chosen = [row for row, counts in zip(rows, counted, strict=True) if counts]
    top = chosen[0]
    for row in chosen[1:]:
        top = torch.where(row > top, row, top)
    return top
