"""Many workers' tensors through one codec at once, to the bit as one after the other.

A codec of blocks works on rows of 4096 values, and what is left of a tensor is a shorter row: rows
of one length are taken together, whoever's they are. What draws goes one by one, since each tensor
has a seed of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from pww.codec import Codec
from pww.codec.blocks import BLOCK, Blocked

DRAWING = ("randomk", "dither")
"""Kinds of codec that draw."""


def recoded(
    codec: Codec,
    rows: torch.Tensor,
    tensors: Mapping[str, slice],
    *,
    seed: Callable[[int, str], int],
) -> torch.Tensor:
    """What is decoded of every tensor of every row (M, n).

    Args:
        codec: As in a run.
        rows: fp32; only read.
        tensors: The columns of each.
        seed: By row and tensor, for codecs that draw.

    Raises:
        NotFiniteError: a value is nan or inf, or too large for the codec.
    """
    if codec.granule == 1:  # each value by itself
        return codec.decode(codec.encode(rows), tuple(rows.shape)).clone()
    found = torch.empty_like(rows)
    if not isinstance(codec, Blocked) or codec.name.startswith(DRAWING):
        for name, place in tensors.items():
            shape = (place.stop - place.start,)
            for number, (row, out) in enumerate(zip(rows, found, strict=True)):
                parts = codec.encode(row[place], seed=seed(number, name))
                out[place] = codec.decode(parts, shape)
        return found
    for width, columns in _widths(tensors).items():
        several = [rows[:, one].reshape(-1, width) for one in columns]
        done = codec.recoded(torch.cat(several))
        for one, part in zip(columns, torch.split(done, [len(s) for s in several]), strict=True):
            found[:, one] = part.view(len(rows), -1)
    return found


def _widths(tensors: Mapping[str, slice]) -> dict[int, list[slice]]:
    """Columns by the length of the rows that they are made of."""
    found: dict[int, list[slice]] = defaultdict(list)
    for place in tensors.values():
        whole = place.stop - (place.stop - place.start) % BLOCK
        if whole > place.start:
            found[BLOCK].append(slice(place.start, whole))
        if place.stop > whole:
            found[place.stop - whole].append(slice(whole, place.stop))
    return found
