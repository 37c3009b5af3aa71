"""Codec dither: whole steps as in int4 or int8, rounded after a shift that decoding takes back.

    bytes of a block of n = ceil(n * bits / 8) + 8               bits 4: 4.016 bits a parameter

With u drawn evenly from half a step below 0 to half a step above it, `round(x + u) - u` is off by
up to half a step, evenly, whatever x is: the mean over seeds is x, and the error is noise of
variance step^2 / 12 that does not depend on x, as that of plain rounding does. A 6th of the largest
magnitude (bits 4; a 126th with 8) is a step, one less than there are, so that a shift never leaves
the codes. Both sides draw u from a key a block, as randomk draws places. Error: half a step.

Source: Roberts, Picture coding using pseudo-random noise, 1962; Gray and Stockham, 1993.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.draws import drawn, row_keys
from pww.codec.packing import pack, packed_bytes, unpack
from pww.codec.scales import LARGEST, TOO_LARGE, check_scales, divisors, peaks, step_scales
from pww.errors import NotFiniteError, PayloadError

PLACES = 1 << 16
"""Shifts that there are: with a code of 8 bits they are exact in fp32."""


class DitherRows:
    """A key, a scale and packed codes a row."""

    exact_decode = True

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._zero = 1 << (bits - 1)  # the code of 0; that below the lowest is none
        self._levels = self._zero - 1

    def columns(self, width: int) -> Columns:
        """Keys, scales and codes."""
        codes = packed_bytes(width, self._bits)
        return {
            "keys": (torch.int32, 1), "codes": (torch.uint8, codes), "scales": (torch.float32, 1),
        }  # fmt: skip

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Shifts and rounds.

        Raises:
            NotFiniteError: a value is nan or inf, or might become so when it is decoded.
        """
        scales = step_scales(peaks(rows), levels=self._levels - 1)
        if float(scales.max()) > LARGEST / (self._levels + 1):
            raise NotFiniteError(TOO_LARGE)
        parts["scales"].copy_(scales)
        parts["keys"].copy_(row_keys(rows.shape[0], seed=seed, device=rows.device))
        codes = torch.div(rows, divisors(scales)).add_(_shifts(parts["keys"], rows.shape[1]))
        # a row of zeros has the scale 0, and whatever its codes are decodes to 0
        pack(codes.round_().clamp_(-self._levels, self._levels).add_(self._zero), self._bits,
             out=parts["codes"])  # fmt: skip

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Takes the shift back, then code times scale.

        Raises:
            PayloadError: a scale or a code is none of this codec's.
        """
        check_scales(parts["scales"], largest=LARGEST / (self._levels + 1))
        codes = unpack(parts["codes"], self._bits, rows.shape[1])
        if int(codes.amin()) < self._zero - self._levels:
            raise PayloadError(
                f"a dither-{self._bits} code of -{self._zero} is damaged: codes are "
                f"-{self._levels} to {self._levels}"
            )
        rows.copy_(codes).sub_(self._zero).sub_(_shifts(parts["keys"], rows.shape[1]))
        rows.mul_(parts["scales"])

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Half a step, and what fp32 rounds on the way; all of what is too small for a scale."""
        peak = peaks(rows)
        scales = step_scales(peak, levels=self._levels - 1)
        near = scales * 0.5 + peak * 2.0**-20
        return torch.where(scales > 0, near.expand(rows.shape), rows.abs())


def _shifts(keys: torch.Tensor, width: int) -> torch.Tensor:
    """fp32 between -1/2 and 1/2, both excluded."""
    places = (drawn(keys, width) >> 16).to(torch.float32)
    return places.add_(0.5 - PLACES / 2).div_(torch.full_like(places[:1], PLACES))
