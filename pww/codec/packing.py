"""Small codes in bytes, for real: eight bits hold two, four or eight of them.

A row of `width` codes of `bits` bits becomes `q = ceil(width / per)` bytes, `per = 8 / bits`: byte
`j` holds the codes `j`, `j + q`, `j + 2q` …, the first in its lowest bits. So packing takes whole
runs of neighbours apart instead of every other value, which is what vector units are good at.
Places that `width` does not fill are zero, and whoever unpacks makes sure of it.
"""

import torch
from torch.nn.functional import pad

from pww.errors import PayloadError


def packed_bytes(width: int, bits: int) -> int:
    """Bytes of a row of `width` codes."""
    return -(-width * bits // 8)


def pack(codes: torch.Tensor, bits: int, *, out: torch.Tensor) -> None:
    """Fills rows of bytes with rows of codes, whole fp32 numbers from 0 to `2^bits - 1`.

    fp32, since that is what rounding leaves; its arithmetic is exact on numbers up to 255.
    """
    per, width = 8 // bits, codes.shape[1]
    size = packed_bytes(width, bits)
    if size * per > width:
        codes = pad(codes, (0, size * per - width))
    planes = codes.view(-1, per, size).unbind(1)
    packed = planes[-1]
    for plane in reversed(planes[:-1]):
        packed = torch.add(plane, packed, alpha=1 << bits)
    # to signed bytes and back: torch has vector code for that, and none to unsigned ones
    out.view(torch.int8).copy_(packed - 128)
    out.bitwise_xor_(128)


def unpack(packed: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Rows of `width` codes, a byte each, from rows of bytes.

    Raises:
        PayloadError: a place beyond `width` is not zero.
    """
    per, size = 8 // bits, packed.shape[1]
    codes = torch.empty((packed.shape[0], per, size), dtype=torch.uint8, device=packed.device)
    for place in range(per):
        plane = codes[:, place]
        torch.bitwise_right_shift(packed, place * bits, out=plane)
        if place < per - 1:
            plane.bitwise_and_((1 << bits) - 1)
    codes = codes.view(packed.shape[0], -1)
    if bool(codes[:, width:].any()):
        raise PayloadError("bits behind the last code are not zero: the part is damaged")
    return codes[:, :width]
