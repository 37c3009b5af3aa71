"""Codec int4: whole steps from -7 to 7 of a seventh of the block's largest magnitude, two a byte.

    bytes = ceil(n / 2) + 4 * ceil(n / 4096)                    4.0078 bits a parameter

As int8 with 7 for 127; a code is written plus 8, so that 0 is none. Blocks have an even length, so
only the last of a tensor can waste half a byte.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.int8 import step_bound
from pww.codec.packing import pack, packed_bytes, unpack
from pww.codec.scales import LARGEST, check_scales, divisors, peaks, step_scales
from pww.errors import PayloadError

LEVELS = 7
ZERO = 8
"""The code of 0."""


class Int4Rows:
    """Half a byte a value, a scale a row."""

    exact_decode = True

    def columns(self, width: int) -> Columns:
        """Packed codes, then the scale."""
        return {"codes": (torch.uint8, packed_bytes(width, 4)), "scales": (torch.float32, 1)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Rounds to the nearest step.

        Raises:
            NotFiniteError: a value is nan or inf.
        """
        scales = step_scales(peaks(rows), levels=LEVELS)
        parts["scales"].copy_(scales)
        codes = torch.div(rows, divisors(scales)).round_().add_(ZERO)
        pack(codes, 4, out=parts["codes"])

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Code times scale.

        Raises:
            PayloadError: a scale or a code is none of this codec's.
        """
        check_scales(parts["scales"], largest=LARGEST / LEVELS)
        codes = unpack(parts["codes"], 4, rows.shape[1])
        if int(codes.amin()) < ZERO - LEVELS:
            raise PayloadError("an int4 code of -8 is damaged: codes are -7 to 7")
        rows.copy_(codes).sub_(ZERO).mul_(parts["scales"])

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Half a step, and what fp32 rounds on the way."""
        return step_bound(rows, levels=LEVELS)
