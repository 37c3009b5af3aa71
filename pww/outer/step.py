"""The outer step, pinned to the bit: weights, weighted mean and update in plain fp32 kernels.

    p_i = fp32((t_i / T) / (1 + discount * s_i) * c_i)  computed in fp64, rounded once
    acc = d_1 * p_1;  for i > 1:  x = d_i * p_i;  acc = acc + x
    m = m * b;  m = m + acc
    u = m * b;  u = acc + u;  u = u * lr;  theta' = theta - u

`c_i` is 1 but for a delta whose norm is clipped. `lr` and `b` are rounded to fp32 first. NumPy
gives the same bits on this form; `torch.optim.SGD`, `alpha=`, `addcmul` and `lerp` do not (they may
fuse a product into a sum, which rounds once instead of twice).
Chunks bound the scratch memory and change no bit, since every line works on each value alone.
"""

import statistics
import struct
import threading
from collections.abc import Sequence

import torch

CHUNK = 1 << 17
"""Values worked on together, 512 KiB of fp32: what a step touches stays in the cache."""
_kept = threading.local()


def fp32(value: float) -> float:
    """`value` rounded to fp32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def weights(
    tokens: Sequence[int],
    staleness: Sequence[int],
    discount: float,
    clips: Sequence[float] = (),
) -> list[float]:
    """Each delta's weight: its share of the tokens, discounted by how many rounds late it is.

    The denominator is not discounted, so a lone late delta is discounted too; nor is it clipped.
    `clips` are the factors of `norm_clips`, none for all 1.
    """
    total = sum(tokens)
    assert total > 0, "a delta without tokens is never admitted"
    clips = clips or [1.0] * len(tokens)
    return [
        fp32((count / total) / (1.0 + discount * late) * clip)
        for count, late, clip in zip(tokens, staleness, clips, strict=True)
    ]


def norm_clips(norms: Sequence[float], limit: float) -> list[float]:
    """What brings each norm down to `limit` times the median of all; 1 where it is not above.

    `limit` is 1 or more, or 0 for no clipping. The median of two is their mean, so that of two
    deltas one is clipped only if it is more than `limit / (2 - limit)` times the other, and none
    is with a limit of 2 or more.
    """
    if limit == 0.0:
        return [1.0] * len(norms)
    longest = limit * statistics.median(norms)
    return [longest / norm if norm > longest else 1.0 for norm in norms]


def add_weighted_(total: torch.Tensor, delta: torch.Tensor, weight: float) -> None:
    """`x = delta * weight; total = total + x`, in place on `total` (both contiguous)."""
    scratch = _scratch(total)
    for sums, part in zip(_chunks(total), _chunks(delta), strict=True):
        x = scratch[: part.numel()]
        torch.mul(part, weight, out=x)
        sums.add_(x)


def outer_step_(
    theta: torch.Tensor,
    momentum: torch.Tensor,
    delta: torch.Tensor,
    *,
    lr: float,
    momentum_factor: float,
    partial: bool,
) -> None:
    """One outer step in place on `theta` and `momentum` (both contiguous).

    A `partial` phase steps with momentum 0 and leaves `momentum` as it is: a short delta is
    mis-scaled against a buffer that full phases built.
    A value of `momentum` that becomes nan or inf makes that of `theta` so: no product or sum on
    the way makes it finite again, and inf * 0 is nan.
    """
    rate, factor = fp32(lr), 0.0 if partial else fp32(momentum_factor)
    scratch = _scratch(theta)
    for th, m, acc in zip(_chunks(theta), _chunks(momentum), _chunks(delta), strict=True):
        u = scratch[: acc.numel()]
        if partial:
            torch.mul(m, factor, out=u)
            u.add_(acc)
            u.mul_(factor)
        else:
            m.mul_(factor)
            m.add_(acc)
            torch.mul(m, factor, out=u)
        u.add_(acc)
        u.mul_(rate)
        th.sub_(u)


def _scratch(like: torch.Tensor) -> torch.Tensor:
    """Memory for a chunk; each thread keeps its own, since fresh pages cost more than a product."""
    if like.dtype != torch.float32 or like.device.type != "cpu":
        return torch.empty(min(CHUNK, like.numel()), dtype=like.dtype, device=like.device)
    kept: torch.Tensor | None = getattr(_kept, "scratch", None)
    if kept is None:
        kept = _kept.scratch = torch.empty(CHUNK)
    return kept


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(tensor.view(-1), CHUNK)
