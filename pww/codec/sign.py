"""Codec sign: one bit a value, and the mean magnitude of the block as the length of both.

    bytes = ceil(n / 8) + 4 * ceil(n / 4096)                    1.0078 bits a parameter

The mean is the length that loses least: what is lost is orthogonal to what is decoded, so it is
shorter than the block and error feedback does not run away. A zero counts as positive. Error: the
distance of the magnitude from the mean.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.packing import pack, packed_bytes, unpack
from pww.codec.scales import check_scales, means, sums


class SignRows:
    """A bit a value, set for a negative one; a scale a row."""

    exact_decode = True

    def columns(self, width: int) -> Columns:
        """Scale and packed bits."""
        return {"codes": (torch.uint8, packed_bytes(width, 1)), "scales": (torch.float32, 1)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Signs and their mean magnitude.

        Raises:
            NotFiniteError: a value is nan or inf, or the sum of a block's magnitudes is.
        """
        sizes = rows.abs()
        total = sums(sizes)
        parts["scales"].copy_(means(total, torch.full_like(total, rows.shape[1])))
        pack(torch.lt(rows, 0, out=sizes), 1, out=parts["codes"])  # fp32 0 and 1

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Plus or minus the scale.

        Raises:
            PayloadError: a scale is none of this codec's, or there are more bits than values.
        """
        check_scales(parts["scales"])
        signs = unpack(parts["codes"], 1, rows.shape[1])
        rows.copy_(signs).mul_(-2).add_(1).mul_(parts["scales"])

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Distance of the magnitude from the mean, and what fp32 rounds on the way."""
        sizes = rows.double().abs()
        mean = sizes.mean(1, keepdim=True)
        far = (sizes - mean).abs() * (1 + 2.0**-22) + mean * 2.0**-20
        return torch.where(mean < 2.0**-99, torch.maximum(sizes, far), far).float()
