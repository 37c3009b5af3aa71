"""Codec dct: the `keep` largest of every 4096 cosine coefficients, in fp16 with a scale.

    bytes of a block of m = ceil(3k/2) + 2k + 4,  k = ceil(keep * m / 4096)     keep 64: 0.445 bits

As DeMo does with its momentum: what neighbours have in common fits into few coefficients. A block
is a square of 64 by 64 and gets the orthonormal two-dimensional DCT-II. A shorter one of `64 h + r`
values is h lines of 64, and r values behind them that get the DCT of r: as many coefficients as
values, of the same energy, so that nothing is lost where all are kept. (Filled up to a square with
zeros, a short block would be spread over 4096 coefficients.) The name on the wire is `dct2-KEEP`;
`dct-KEEP` filled up.

Matrix products add in an order of their own, so bits differ from device to device: `exact_decode`
is false, and the codec is for deltas on their way up only. Error: no value is off by more than the
norm of what the block lost.

Source: DeMo, arXiv 2411.19870.
"""

import math
from collections.abc import Mapping
from functools import cache

import torch

from pww.codec.blocks import Columns
from pww.codec.finite import is_finite
from pww.codec.fp16 import Fp16Rows
from pww.codec.places import kept, largest_places, pack_places, places_bytes, unpack_places
from pww.codec.scales import LARGEST, TOO_LARGE, peaks
from pww.errors import NotFiniteError, PayloadError

SIDE = 64


class DctRows:
    """Packed places of coefficients, then their values."""

    exact_decode = False

    def __init__(self, keep: int) -> None:
        self._keep, self._values = keep, Fp16Rows()

    def columns(self, width: int) -> Columns:
        """Places, scale and halves."""
        count = kept(width, self._keep)
        return {"places": (torch.uint8, places_bytes(count)), **self._values.columns(count)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Transforms and keeps the largest.

        Raises:
            NotFiniteError: a value is nan or inf, or so large that a sum of 64 would be.
        """
        if float(peaks(rows).max()) > LARGEST / SIDE:
            raise NotFiniteError(TOO_LARGE)
        coefficients = transform(rows)
        places = largest_places(coefficients, kept(rows.shape[1], self._keep))
        parts["places"].copy_(pack_places(places))
        self._values.encode(coefficients.gather(1, places), parts, seed=seed)

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Transforms back.

        Raises:
            PayloadError: a part holds what this codec never writes, or leaves fp32's range.
        """
        width = rows.shape[1]
        places = unpack_places(parts["places"], count=kept(width, self._keep), width=width)
        values = torch.empty_like(places, dtype=torch.float32)
        self._values.decode(parts, values)
        coefficients = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        rows.copy_(inverse(coefficients.scatter_(1, places, values)))
        if not is_finite(rows):
            raise PayloadError("coefficients are too large for fp32: the part is damaged")

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Norm of what is not kept and of fp16's part, and what fp32 rounds on the way."""
        squares = transform(rows.double()).square().sort(dim=1, descending=True).values
        lost = squares[:, kept(rows.shape[1], self._keep) :].sum(1, keepdim=True).sqrt()
        rounded = squares.sum(1, keepdim=True).sqrt() * (2.0**-11 + 2.0**-16) + 2.0**-96
        return (lost + rounded).float().expand(rows.shape)


def transform(rows: torch.Tensor) -> torch.Tensor:
    """The n coefficients of each row of n values, n at most 4096."""
    square, rest = _split(rows)
    lines = _cosines(square.shape[1], rows) @ square @ _cosines(SIDE, rows).T
    return _joined(lines, rest @ _cosines(rest.shape[1], rows).T)


def inverse(coefficients: torch.Tensor) -> torch.Tensor:
    """The values again."""
    square, rest = _split(coefficients)
    lines = _cosines(square.shape[1], square).T @ square @ _cosines(SIDE, square)
    return _joined(lines, rest @ _cosines(rest.shape[1], rest))


def _split(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lines of 64, and the values behind them."""
    lines = rows.shape[1] // SIDE
    square, rest = rows[:, : lines * SIDE], rows[:, lines * SIDE :]
    return square.reshape(len(rows), lines, SIDE), rest


def _joined(lines: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    flat = lines.reshape(len(rest), -1)
    return torch.cat((flat, rest), dim=1) if rest.shape[1] else flat


def _cosines(size: int, like: torch.Tensor) -> torch.Tensor:
    return _dct(size).to(dtype=like.dtype, device=like.device)


@cache
def _dct(size: int) -> torch.Tensor:
    """The orthonormal DCT-II (fp64): rows are frequencies, columns places."""
    found = [
        [
            math.sqrt((2 if k else 1) / size) * math.cos(math.pi * k * (2 * n + 1) / (2 * size))
            for n in range(size)
        ]
        for k in range(size)
    ]
    return torch.tensor(found, dtype=torch.float64).reshape(size, size)
