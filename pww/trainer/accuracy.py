"""How many images a network gets right: each counted once, on any number of ranks.

A distributed sampler pads instead, and counts 10,002 of 10,000 on 3 ranks. Here all ranks make the
same number of forward passes (sharded layers need that) over batches of one size, and rows beyond
the last image count for nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from pww.trainer.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over all ranks' images."""

    right: int
    count: int
    loss: float  # mean, nats

    @property
    def accuracy(self) -> float:
        """Share that is right."""
        return self.right / self.count


@torch.no_grad()
def score(
    model: nn.Module,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    *,
    batch: int,
    ranks: Ranks,
    prepare: Callable[[torch.Tensor], torch.Tensor],
) -> Score:
    """Collective: `model` on all `pixels` (one or more), at most `batch` of a rank in a pass; it
    stays in its mode.
    """
    num = len(pixels)
    share = -(-num // ranks.world)
    batch = min(batch, share)
    mine = range(min(ranks.rank * share, num), min((ranks.rank + 1) * share, num))
    right = count = 0
    loss = 0.0
    was = model.training
    model.eval()
    try:
        for start in range(0, share, batch):
            here = mine[start : start + batch]
            ids = torch.zeros(batch, dtype=torch.long)  # image 0 fills a batch up
            ids[: len(here)] = torch.tensor(list(here), dtype=torch.long)
            logits = model(prepare(pixels[ids])).float()[: len(here)]
            truth = labels[ids[: len(here)]].long().to(logits.device)
            right += int((logits.argmax(1) == truth).sum())
            loss += float(nn.functional.cross_entropy(logits.double(), truth, reduction="sum"))
            count += len(here)
    finally:
        model.train(was)
    sums = torch.tensor([right, count, loss], dtype=torch.float64)
    if ranks.group is not None:
        dist.all_reduce(sums, group=ranks.group)
    return Score(int(sums[0]), int(sums[1]), float(sums[2] / sums[1]))
