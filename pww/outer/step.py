"""The outer step, pinned to the bit: weights, weighted mean and update in plain fp32 kernels.

    p_i = fp32((t_i / T) / (1 + discount * s_i))        computed in fp64, rounded once
    acc = d_1 * p_1;  for i > 1:  x = d_i * p_i;  acc = acc + x
    m = m * b;  m = m + acc
    u = m * b;  u = acc + u;  u = u * lr;  theta' = theta - u

`lr` and `b` are rounded to fp32 first. NumPy gives the same bits on this form; `torch.optim.SGD`,
`alpha=`, `addcmul` and `lerp` do not (they may fuse a product into a sum, which rounds once instead
of twice).
Chunks bound the scratch memory and change no bit, since every line works on each value alone.
"""

import struct
from collections.abc import Iterable, Sequence

import torch

CHUNK = 1 << 20
"""Values worked on together, 4 MiB of fp32: scratch stays in the cache."""


def fp32(value: float) -> float:
    """`value` rounded to fp32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def weights(tokens: Sequence[int], staleness: Sequence[int], discount: float) -> list[float]:
    """Each delta's weight: its share of the tokens, discounted by how many rounds late it is.

    The denominator is not discounted, so a lone late delta is discounted too.
    """
    total = sum(tokens)
    assert total > 0, "a delta without tokens is never admitted"
    return [
        fp32((count / total) / (1.0 + discount * late))
        for count, late in zip(tokens, staleness, strict=True)
    ]


def accumulate(deltas: Iterable[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """`sum_i p_i * delta_i` in the order given; reads one delta at a time and changes none."""
    assert weights, "nothing to accumulate"
    source = iter(deltas)
    total = next(source) * weights[0]
    for weight in weights[
        1:
    ]:  # no `for` over the deltas: it would hold one while fetching the next
        delta = next(source)
        for sums, part in zip(_chunks(total), _chunks(delta), strict=True):
            x = part * weight
            sums.add_(x)
        del delta, part
    return total


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
    """
    rate, factor = fp32(lr), 0.0 if partial else fp32(momentum_factor)
    for th, m, acc in zip(_chunks(theta), _chunks(momentum), _chunks(delta), strict=True):
        velocity = m * factor
        velocity.add_(acc)
        u = velocity * factor
        u.add_(acc)
        u.mul_(rate)
        th.sub_(u)
        if not partial:
            m.copy_(velocity)


def _chunks(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.split(tensor.view(-1), CHUNK)
