"""Codec topk: of every 4096 values the `keep` largest magnitudes, in 2, 4, 8 or 16 bits each.

    bytes of a block of m = ceil(3k/2) + values(k),  k = ceil(keep * m / 4096)
    values(k) = ceil(k*bits/8) + 4, and 4 more with 2 bits, which have two scales

    keep 64: 0.234 bits a parameter with 2-bit values, 0.258 with 4;  keep 256: 0.891 with 2

Places take 12 bits; values are those of int2, int4, int8 or fp16 over the kept ones. A shorter last
block keeps the same share, one value at least. What is not kept is zero, and left to the error
feedback. Error: of a value below the smallest kept, itself; of a kept one, its value codec's.
"""

from collections.abc import Mapping

import torch

from pww.codec.blocks import Columns, Rows
from pww.codec.places import kept, largest_places, pack_places, places_bytes, unpack_places


class TopKRows:
    """Packed places, then the parts of the values there."""

    def __init__(self, keep: int, values: Rows) -> None:
        self._keep, self._values = keep, values
        self.exact_decode = values.exact_decode

    def columns(self, width: int) -> Columns:
        """Places and the value codec's columns."""
        count = kept(width, self._keep)
        return {"places": (torch.uint8, places_bytes(count)), **self._values.columns(count)}

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Keeps the largest.

        Raises:
            NotFiniteError: a value is nan or inf: then so is one of the largest.
        """
        places = largest_places(rows, kept(rows.shape[1], self._keep))
        parts["places"].copy_(pack_places(places))
        self._values.encode(rows.gather(1, places), parts, seed=seed)

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """The kept values, among zeros.

        Raises:
            PayloadError: a part holds what this codec never writes.
        """
        width = rows.shape[1]
        count = kept(width, self._keep)
        places = unpack_places(parts["places"], count=count, width=width)
        values = torch.empty_like(places, dtype=torch.float32)
        self._values.decode(parts, values)
        rows.zero_().scatter_(1, places, values)

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """The value where it is not kept, else what the value codec may do to it."""
        order = rows.abs().sort(dim=1, descending=True, stable=True).indices
        places = order[:, : kept(rows.shape[1], self._keep)]
        return rows.abs().scatter(1, places, self._values.bound(rows.gather(1, places)))
