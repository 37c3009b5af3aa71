"""Codec randomk: one value drawn from each of `keep` equal stretches of 4096, unbiased.

    bytes of a block of m = 4 * k + 4,  k = ceil(keep * m / 4096)         keep 64: 0.508 bits

A stretch of `s` values sends one of them exactly, and decoding multiplies it by `s`: the mean over
seeds is the tensor and each value's variance `(s - 1) x^2`, as if k were drawn anywhere (omega is
1/r - 1), but places need neither sorting nor bytes. They follow from 32 bits a block, which stand
in the payload and are a function of the seed plus the number of the block.

With `scaled=False` (name `…-raw`) decoding does not multiply: for error feedback, which an unbiased
codec would blow up, since it would be left with `(1 - s) x`. Error: of a value that is drawn
`(s - 1) |x|` (0 if raw), of the others itself.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns
from pww.codec.draws import drawn, row_keys
from pww.codec.finite import is_finite
from pww.codec.places import kept
from pww.codec.scales import TOO_LARGE
from pww.errors import NotFiniteError, PayloadError


class RandomKRows:
    """A key and values as they are."""

    exact_decode = True

    def __init__(self, keep: int, *, scaled: bool) -> None:
        self._keep, self._scaled = keep, scaled

    def columns(self, width: int) -> Columns:
        """Key and values."""
        return {"keys": (torch.int32, 1), "values": (torch.float32, kept(width, self._keep))}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Draws.

        Raises:
            NotFiniteError: a value is nan or inf, or would become so when it is decoded.
        """
        _, sizes = self._stretches(rows)
        largest = float(sizes.max()) if self._scaled else 1.0
        if not is_finite(torch.stack(torch.aminmax(rows)) * largest):
            raise NotFiniteError(TOO_LARGE)
        parts["keys"].copy_(row_keys(rows.shape[0], seed=seed, device=rows.device))
        parts["values"].copy_(rows.gather(1, self._places(parts["keys"], rows)))

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """The drawn values times the lengths of their stretches, among zeros.

        Raises:
            PayloadError: a value is nan or inf, or becomes so.
        """
        values = parts["values"]
        if self._scaled:
            values = values * self._stretches(rows)[1].float()
        if not is_finite(values):
            raise PayloadError("a value is nan or inf, or too large: the part is damaged")
        rows.zero_().scatter_(1, self._places(parts["keys"], rows), values)

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """Whatever the seed: `(s - 1) |x|`, at least `|x|`."""
        _, sizes = self._stretches(rows)
        factor = (sizes - 1).clamp_min(1) if self._scaled else torch.ones_like(sizes)
        each = torch.repeat_interleave(factor, sizes).float()
        return rows.abs() * each * (1 + 2.0**-22)

    def _stretches(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the stretches of a row start, and how long they are."""
        width = rows.shape[1]
        count = kept(width, self._keep)
        edges = torch.arange(count + 1, device=rows.device) * width // count
        return edges[:-1], edges[1:] - edges[:-1]

    def _places(self, keys: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """One place in each stretch; every one as likely as the next, but for one part in 10^6."""
        starts, sizes = self._stretches(rows)
        return starts + (drawn(keys, starts.numel()) * sizes >> 32)
