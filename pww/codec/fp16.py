"""Codec fp16: IEEE half precision of the value over a power of two near the block's largest.

    bytes = 2 * n + 4 * ceil(n / 4096)                          16.0078 bits a parameter

Deltas leave fp16's own range; over a scale that puts the block's largest between 2^14 and 2^15
nothing overflows, and values down to 2^-28 of it keep 11 bits. The scale is a power of two, so that
the only rounding is fp16's. Error: 2^-11 of the value, or 2^-39 of the block's largest.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.scales import SMALLEST, check_scales, divisors, peaks
from pww.errors import NotFiniteError, PayloadError

TOP = 2.0**15
"""No magnitude over its scale is above."""
LIMIT = 2.0**128 * (1 - 2.0**-12)
"""A magnitude from here on would round to inf."""


class Fp16Rows:
    """Two bytes a value, a scale a row."""

    exact_decode = True

    def columns(self, width: int) -> Columns:
        """Halves, then the scale."""
        return {"codes": (torch.float16, width), "scales": (torch.float32, 1)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Rounds to half precision.

        Raises:
            NotFiniteError: a value is nan or inf, or would round to inf.
        """
        peak = peaks(rows)
        if float(peak.max()) >= LIMIT:
            raise NotFiniteError(
                f"a value of magnitude {float(peak.max()):.6g} is above fp16's largest with a "
                f"scale, {LIMIT:.6g}: use codec=fp32, and doubt the delta"
            )
        scales = _scales(peak)
        parts["scales"].copy_(scales)
        parts["codes"].copy_(torch.div(rows, divisors(scales)))

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Half times scale.

        Raises:
            PayloadError: a scale or a half is none of this codec's.
        """
        scales = parts["scales"]
        check_scales(scales, largest=2.0**113)
        if bool((scales.view(torch.int32) & 0x007FFFFF).any()):
            raise PayloadError("a scale of fp16 is damaged: it is no power of two")
        low, high = (float(end) for end in torch.aminmax(rows.copy_(parts["codes"])))
        if not -TOP <= low <= high <= TOP:
            raise PayloadError(f"an fp16 code of {low:g} or {high:g} is damaged: at most {TOP:g}")
        rows.mul_(scales)

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Half a unit in the last place of fp16, times the scale."""
        scales = _scales(peaks(rows))
        near = torch.maximum(rows.abs() * 2.0**-11, scales * 2.0**-25)
        return torch.where(scales > 0, near, rows.abs())


def _scales(peak: torch.Tensor) -> torch.Tensor:
    """The power of two at or below the peak, over 2^14; 0 for a row of (nearly) zeros."""
    power = (peak.view(torch.int32) & 0x7F800000).view(torch.float32)
    return torch.where(peak >= SMALLEST, power * 2.0**-14, 0.0)
