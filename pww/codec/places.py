"""Which values of a row are kept, and their places in 12 bits each.

Places ascend. Two make three bytes, whole runs of neighbours apart as in `packing`: with
`h = ceil(k / 2)` the first `h` places are `a`, the others `b`, and the bytes are all `a & 255`,
then all `a >> 8 | (b & 15) << 4`, then all `b >> 4`. An odd last half byte is zero.
"""

import torch
from torch.nn.functional import pad

from pww.errors import PayloadError

PLACES = 4096
"""Twelve bits."""


def kept(width: int, keep: int) -> int:
    """How many of `width` values are kept if of 4096 it is `keep`: the same share, rounded up."""
    return -(-keep * width // PLACES)


def largest_places(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The ascending places of the `count` largest magnitudes of each row, as int64; nan is largest.

    Of equal magnitudes the one further left is taken, on every device. Which of equals `topk` takes
    is the device's own choice, so there are none: a key is the magnitude's bits, which are ordered
    as magnitudes are, and below them 4095 minus the place.
    """
    last = PLACES - 1
    down = torch.arange(last, last - rows.shape[1], -1, device=rows.device)
    keys = rows.contiguous().view(torch.int32).to(torch.int64)
    keys.bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(12).bitwise_or_(down)
    best = keys.topk(count, dim=1, sorted=False).values
    return best.bitwise_and_(last).neg_().add_(last).sort(dim=1).values


def places_bytes(count: int) -> int:
    """Bytes of a row of `count` places."""
    return -(-3 * count // 2)


def pack_places(places: torch.Tensor) -> torch.Tensor:
    """Rows of places as rows of bytes."""
    half = -(-places.shape[1] // 2)
    first, second = places[:, :half], places[:, half:]
    padded = pad(second, (0, half - second.shape[1]))
    middle = (first >> 8) | ((padded & 15) << 4)
    return torch.cat((first & 255, middle, second >> 4), dim=1).to(torch.uint8)


def unpack_places(packed: torch.Tensor, *, count: int, width: int) -> torch.Tensor:
    """Rows of `count` places below `width`, as int64.

    Raises:
        PayloadError: they do not ascend, or leave the row.
    """
    half = -(-count // 2)
    wide = packed.long()
    low, middle, high = wide[:, :half], wide[:, half : 2 * half], wide[:, 2 * half :]
    last = middle >> 4
    if bool(last[:, count - half :].any()):
        raise PayloadError("bits behind the last place are not zero: the part is damaged")
    first = low | ((middle & 15) << 8)
    places = torch.cat((first, last[:, : count - half] | (high << 4)), dim=1)
    if not bool((places[:, 1:] > places[:, :-1]).all()):
        raise PayloadError("places do not ascend: the part is damaged")
    if int(places[:, -1].max()) >= width:
        raise PayloadError(f"a place is outside of a row of {width} values: the part is damaged")
    return places
