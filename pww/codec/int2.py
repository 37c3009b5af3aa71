"""Codec int2: sign and one bit of magnitude: the mean of the block's small or of its large values.

    bytes = ceil(n / 4) + 8 * ceil(n / 4096)                    2.0156 bits a parameter

"Large" is above the mean magnitude. Both levels are means of what they stand for, as in the 2-bit
quantiser of SparseLoCo, so what is lost is orthogonal to what is decoded, whatever the
distribution. On Gaussian values it is 0.125 of the square, where the best four levels lose 0.118;
levels at 1/3 and 1 of the largest lose more than the half, since one value in 4096 sets them. A
second scale costs 0.008 bits and serves the values of topk too, none of which is small.

Source: SparseLoCo, arXiv 2508.15706; Lloyd 1982 for the best levels.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.packing import pack, packed_bytes, unpack
from pww.codec.scales import check_scales, means, sums


class Int2Rows:
    """Bit 0 is set for a negative value, bit 1 for a large one; two scales a row: small, large."""

    exact_decode = True

    def columns(self, width: int) -> Columns:
        """Packed codes, then the scales."""
        return {"codes": (torch.uint8, packed_bytes(width, 2)), "scales": (torch.float32, 2)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Signs, sizes and the mean of either size.

        Raises:
            NotFiniteError: a value is nan or inf, or the sum of a block's magnitudes is.
        """
        sizes = rows.abs()
        total = sums(sizes)
        mean = means(total, torch.full_like(total, rows.shape[1]))
        # 0 and 1 in fp32, which torch writes several times as fast as bools
        large = torch.gt(sizes, mean, out=torch.empty_like(sizes))
        count = sums(large)  # whole numbers up to 4096: exact
        above = sizes * large
        parts["scales"][:, 1:].copy_(means(sums(above), count))
        below = sizes.sub_(above)  # exact: one of the two is 0
        parts["scales"][:, :1].copy_(means(sums(below), rows.shape[1] - count))
        pack(torch.lt(rows, 0, out=above).add_(large, alpha=2), 2, out=parts["codes"])

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Plus or minus one of the two scales.

        Raises:
            PayloadError: a scale is none of this codec's, or there are more bits than values.
        """
        check_scales(parts["scales"])
        codes = unpack(parts["codes"], 2, rows.shape[1])
        large = (codes >> 1).float()
        rows.copy_(codes.bitwise_and(1)).mul_(-2).add_(1)
        above = large * parts["scales"][:, 1:]
        # exact: one of the two is 0
        rows.mul_(large.neg_().add_(1).mul_(parts["scales"][:, :1]).add_(above))

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """A magnitude's distance from its level, whichever side of the mean fp32 finds it on."""
        sizes = rows.double().abs()
        mean = sizes.mean(1, keepdim=True)
        near = mean * 2.0**-20
        low, high = sizes <= mean + near, sizes >= mean - near
        lows, highs = (side.sum(1, keepdim=True) for side in (low, high))
        small = torch.where(low, sizes, 0).sum(1, keepdim=True) / lows
        large = torch.where(high, sizes, 0).sum(1, keepdim=True) / highs
        to_small, to_large = (sizes - small).abs(), (sizes - large).abs()
        nearest = torch.where(low & high, torch.maximum(to_small, to_large),
                              torch.where(low, to_small, to_large))  # fmt: skip
        # a value at the mean moves both levels by its share in them
        moved = (low & high).sum(1, keepdim=True) * large / torch.minimum(lows, highs)
        nearest = nearest * (1 + 2.0**-22) + near * 4 + moved + 2.0**-99
        return torch.where(mean < 2.0**-99, torch.maximum(sizes, nearest), nearest).float()
