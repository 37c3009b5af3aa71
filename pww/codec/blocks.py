"""Codecs that work on blocks of 4096 flat values, each independent of the others.

The flat tensor is cut into rows of `BLOCK` values; the last row may be shorter. How a row becomes
parts is a `Rows`; here is what all of them share: the layout, the runs of bounded scratch, the
threads and the finite check's words. Each part is flat, row after row.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol

import torch

from pww.codec.base import Layout, Shape, check_parts, layout_bytes
from pww.codec.finite import require_finite
from pww.codec.threads import spread
from pww.errors import NotFiniteError

BLOCK = 4096
"""Values with scales of their own: 12 bits tell their places."""
RUN = 64 * BLOCK
"""Values encoded together: 1 MiB, so that the passes over a run find it in the cache."""

Columns = dict[str, tuple[torch.dtype, int]]
"""Part name -> dtype and elements a row."""


class Rows(Protocol):
    """How rows of up to `BLOCK` values become parts; stateless."""

    @property
    def exact_decode(self) -> bool:
        """See `Codec`."""

    def columns(self, width: int) -> Columns:
        """What a row of `width` > 0 values becomes."""

    def encode(self, rows: torch.Tensor, parts: Mapping[str, torch.Tensor], *, seed: int) -> None:
        """Fills `parts`, a row each; row `i` draws from `seed + i`. `rows` stay what they are.

        Raises:
            NotFiniteError: a value is nan or inf, or too large for this codec.
        """

    def decode(self, parts: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Fills `rows`.

        Raises:
            PayloadError: a part holds what `encode` never writes.
        """

    def bound(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Codec`."""


class Blocked:
    """A codec of rows."""

    granule = BLOCK

    def __init__(self, name: str, rows: Rows) -> None:
        self.name, self._rows = name, rows

    @property
    def exact_decode(self) -> bool:
        """As the rows say."""
        return self._rows.exact_decode

    def layout(self, shape: Shape) -> Layout:
        """Flat parts: those of all whole blocks, then those of the rest."""
        blocks, rest = divmod(math.prod(shape), BLOCK)
        sizes = dict.fromkeys(whole := self._rows.columns(BLOCK), 0)
        for count, columns in ((blocks, whole), (1, self._rows.columns(rest) if rest else {})):
            for part, (_, elements) in columns.items():
                sizes[part] += count * elements
        return {part: (dtype, (sizes[part],)) for part, (dtype, _) in whole.items()}

    def encode(self, tensor: torch.Tensor, *, seed: int = 0) -> dict[str, torch.Tensor]:
        """The parts, computed in runs.

        Raises:
            NotFiniteError: a value is nan or inf, or too large for this codec.
        """
        flat = tensor.detach().reshape(-1)
        parts = {
            part: torch.empty(shape, dtype=dtype, device=tensor.device)
            for part, (dtype, shape) in self.layout(tuple(tensor.shape)).items()
        }
        try:
            spread(
                [
                    partial(self._rows.encode, rows, here, seed=seed + start // BLOCK)
                    for start, rows, here in self._runs(flat, parts)
                ],
                threads=tensor.device.type == "cpu",
            )
        except NotFiniteError:
            require_finite(tensor)  # counts over the whole tensor
            raise
        return parts

    def decode(self, parts: Mapping[str, torch.Tensor], shape: Shape) -> torch.Tensor:
        """The tensor, in memory of its own.

        Raises:
            PayloadError: the parts are not what this codec writes.
        """
        layout = self.layout(shape)
        check_parts(self.name, parts, layout)
        device = next(iter(parts.values())).device
        flat = torch.empty(math.prod(shape), dtype=torch.float32, device=device)
        spread(
            [partial(self._rows.decode, here, rows) for _, rows, here in self._runs(flat, parts)],
            threads=device.type == "cpu",
        )
        return flat.reshape(shape)

    def recoded(self, rows: torch.Tensor) -> torch.Tensor:
        """What decoding gives of `rows`, each of which is a tensor of up to `BLOCK` values.

        For simulations, which encode many little tensors at once. Codecs that draw do so by the
        number of the row alone.

        Raises:
            NotFiniteError: a value is nan or inf, or too large for this codec.
        """
        parts = {
            part: torch.empty(rows.shape[0], elements, dtype=dtype, device=rows.device)
            for part, (dtype, elements) in self._rows.columns(rows.shape[1]).items()
        }
        found = torch.empty_like(rows)
        self._rows.encode(rows, parts, seed=0)
        self._rows.decode(parts, found)
        return found

    def bound(self, tensor: torch.Tensor) -> torch.Tensor:
        """As the rows say."""
        flat = tensor.detach().reshape(-1)
        bounds = [self._rows.bound(rows).reshape(-1) for _, rows, _ in self._runs(flat, {})]
        return torch.cat([*bounds, flat[:0]]).reshape(tensor.shape)

    def size_bytes(self, shape: Shape) -> int:
        """Bytes of all parts."""
        return layout_bytes(self.layout(shape))

    def _runs(
        self, flat: torch.Tensor, parts: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[int, torch.Tensor, dict[str, torch.Tensor]]]:
        """Runs of whole rows, then the shorter row: start, rows, and their places in the parts."""
        size, at = flat.numel(), dict.fromkeys(parts, 0)
        whole = size // BLOCK * BLOCK
        for start in [*range(0, whole, RUN), *([whole] if size > whole else [])]:
            stop = min(start + RUN, whole) if start < whole else size
            rows = flat[start:stop].view(-1, min(BLOCK, stop - start))
            here = {}
            for part, (_, elements) in self._rows.columns(rows.shape[1]).items():
                if part in parts:
                    end = at[part] + rows.shape[0] * elements
                    here[part] = parts[part][at[part] : end].view(-1, elements)
                    at[part] = end
            yield start, rows, here
