"""Codec int8: whole steps from -127 to 127 of a 127th of the block's largest magnitude.

    bytes = n + 4 * ceil(n / 4096)                              8.0078 bits a parameter

`scale = max|x| * (1/127 rounded down)`, `code = round_half_even(x / scale)`. Error: half a step,
but for fp32's rounding; no decoded magnitude is above the block's largest.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.scales import LARGEST, check_scales, divisors, peaks, step_scales
from pww.errors import PayloadError

LEVELS = 127


class Int8Rows:
    """A byte a value, a scale a row."""

    exact_decode = True

    def columns(self, width: int) -> Columns:
        """Codes, then the scale: a writer keeps all but the first part in memory."""
        return {"codes": (torch.int8, width), "scales": (torch.float32, 1)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Rounds to the nearest step.

        Raises:
            NotFiniteError: a value is nan or inf.
        """
        scales = step_scales(peaks(rows), levels=LEVELS)
        parts["scales"].copy_(scales)
        parts["codes"].copy_(torch.div(rows, divisors(scales)).round_())

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Code times scale.

        Raises:
            PayloadError: a scale or a code is none of this codec's.
        """
        check_scales(parts["scales"], largest=LARGEST / LEVELS)
        if int(parts["codes"].amin()) < -LEVELS:
            raise PayloadError("an int8 code of -128 is damaged: codes are -127 to 127")
        rows.copy_(parts["codes"]).mul_(parts["scales"])

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Half a step, and what fp32 rounds on the way."""
        return step_bound(rows, levels=LEVELS)


def step_bound(rows: torch.Tensor, *, levels: int) -> torch.Tensor:
    """Half a step; of rows that decode to zero, their peak."""
    peak = peaks(rows)
    scales = step_scales(peak, levels=levels)
    return torch.where(scales > 0, scales * (0.5 + 2.0**-15), peak).expand(rows.shape)
