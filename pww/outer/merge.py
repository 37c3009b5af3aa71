"""Merge rules: the vectors of M contributors become one.

Vectors are the rows of a matrix (M, n), each a whole delta (or the part of it that is exchanged):
rules that measure distances see all of it. Only the mean and the clipped mean have weights; for a
round of equals these are 1/M.
"""

from collections.abc import Sequence
from typing import assert_never

import torch

from pww.config.schema.lab import Merge
from pww.outer.step import add_weighted_, fp32, norm_clips


def merged(rows: torch.Tensor, weights: Sequence[float], rule: Merge) -> torch.Tensor:
    """One vector (n,) of `rows` (M, n), M at least 1; `rows` are only read."""
    match rule.kind:
        case "mean":
            return mean(rows, weights)
        case "median":
            return median(rows)
        case "trimmed":
            return trimmed_mean(rows, trim=rule.trim)
        case "clipped":
            return clipped_mean(rows, weights, limit=rule.limit)
        case "geometric":
            return geometric_median(rows, iterations=rule.iterations)
        case "krum":
            return krum(rows, attackers=rule.attackers)
        case _:
            assert_never(rule)


def mean(rows: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
    """`sum of weight times row`, to the bit as the central and a replica alone do it."""
    total = rows[0] * fp32(weights[0])
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        add_weighted_(total, row, fp32(weight))
    return total


def median(rows: torch.Tensor) -> torch.Tensor:
    """Of each coordinate; of an even number the mean of the two in the middle.

    Source: Yin et al., arXiv 1803.01498.
    """
    return trimmed_mean(rows, trim=(len(rows) - 1) // 2)


def trimmed_mean(rows: torch.Tensor, *, trim: int) -> torch.Tensor:
    """The mean of each coordinate without its `trim` largest and `trim` smallest values.

    Source: Yin et al., arXiv 1803.01498.
    """
    assert 2 * trim < len(rows), "trim leaves nothing"
    ordered = rows.sort(dim=0).values[trim : len(rows) - trim]
    share = 1.0 / len(ordered)
    return mean(ordered, [share] * len(ordered))


def clipped_mean(rows: torch.Tensor, weights: Sequence[float], *, limit: float) -> torch.Tensor:
    """The mean of rows none of which is longer than `limit` times the median norm."""
    norms = rows.double().square().sum(1).sqrt().tolist()
    clips = norm_clips(norms, limit)
    return mean(rows, [w * clip for w, clip in zip(weights, clips, strict=True)])


def geometric_median(rows: torch.Tensor, *, iterations: int) -> torch.Tensor:
    """The point with the least sum of distances, by Weiszfeld's iteration in fp64.

    Starts at the median of each coordinate. A distance below a 1e-9th of the largest counts as
    that: on a row itself the iteration would divide by zero.
    Source: Weiszfeld 1937; Pillutla et al., arXiv 1912.13445.
    """
    wide = rows.double()
    point = median(rows).double()
    for _ in range(iterations):
        far = (wide - point).square().sum(1).sqrt()
        shares = 1.0 / far.clamp_min(max(float(far.max()) * 1e-9, 1e-300))
        moved = (shares / shares.sum()) @ wide
        step = float((moved - point).norm())
        point = moved
        if step <= 1e-9 * float(far.max()):
            break
    return point.float()


def krum(rows: torch.Tensor, *, attackers: int) -> torch.Tensor:
    """The row whose M - f - 2 nearest others are nearest, by the sum of squared distances.

    Source: Blanchard et al., arXiv 1703.02757.
    """
    near = len(rows) - attackers - 2
    assert near >= 1, "too few rows for krum"
    wide = rows.double()
    # One by one: M^2 n at once would not fit
    apart = torch.stack([(wide - row).square().sum(1) for row in wide])
    apart.fill_diagonal_(torch.inf)
    scores = apart.sort(dim=1).values[:, :near].sum(1)
    return rows[int(scores.argmin())].clone()
