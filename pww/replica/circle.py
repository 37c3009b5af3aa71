"""A few ranks that tell each other tensors: one replica's, or rank j of every replica.

Only two collectives, gather and broadcast: what sums is written here, in rank order, so that a
result has the same bits on every rank and in every run, which an all-reduce does not promise.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import distributed as dist

from pww.trainer.ranks import together


class Group(Protocol):
    """A process group or a bare backend: their methods are the same."""

    def size(self) -> int:
        """Ranks in it."""

    def rank(self) -> int:
        """This one's place."""

    def allgather(self, output: Any, given: Any, /) -> dist.Work:
        """Everybody's tensor, everywhere."""

    def broadcast(self, tensors: Any, how: Any, /) -> dist.Work:
        """One's tensor, everywhere."""


class Circle:
    """A process group, or a rank by itself (`group` None); every method is collective."""

    def __init__(self, group: Group | None, *, device: torch.device) -> None:
        """`device` is where the group's backend wants its tensors: the CPU for gloo.

        The group's own methods are called, since torch's functions know registered groups only.
        """
        self._group, self._device = group, device
        self.size = 1 if group is None else group.size()
        self.place = 0 if group is None else group.rank()

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Everybody's tensor, of the same shape and dtype, in order and where `mine` is."""
        if self._group is None or mine.numel() == 0:
            return [mine] * self.size
        sent = _bytes(mine.to(self._device))
        got = [torch.empty_like(sent) for _ in range(self.size)]
        with together("allocation"):
            self._group.allgather([got], [sent]).wait()
        return [one.view(mine.dtype).view(mine.shape).to(mine.device) for one in got]

    def numbers(self, *mine: float) -> list[list[float]]:
        """Everybody's numbers, fp64, in order."""
        told = self.gather(torch.tensor(mine, dtype=torch.float64))
        return [[float(x) for x in one] for one in told]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all, in order: the same bits everywhere."""
        if not values:
            return []
        return [sum(column) for column in zip(*self.numbers(*values), strict=True)]

    @torch.no_grad()
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Overwrites `tensor` with that of `source`, the first unless it is given."""
        if self._group is None or tensor.numel() == 0:
            return
        sent = _bytes(tensor.detach().to(self._device))
        how = dist.BroadcastOptions()
        how.rootRank = source
        with together("allocation"):
            self._group.broadcast([sent], how).wait()
        if self.place != source:
            tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes: no backend knows all of a codec's dtypes."""
    return tensor.contiguous().view(-1).view(torch.uint8)
