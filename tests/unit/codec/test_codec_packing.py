"""Packed codes and places: layouts by hand, every width, and what is kept of a row."""

import math

import pytest
import torch

from pww.codec import codec_named
from pww.codec.packing import pack, packed_bytes, unpack
from pww.codec.places import kept, largest_places, pack_places, places_bytes, unpack_places


def packed(codes, bits):
    out = torch.empty((len(codes), packed_bytes(len(codes[0]), bits)), dtype=torch.uint8)
    pack(torch.tensor(codes, dtype=torch.float32), bits, out=out)
    return out


@pytest.mark.parametrize(
    ("bits", "codes", "data"),
    [
        (4, [1, 2, 3, 4, 15], [0x41, 0xF2, 0x03]),
        (2, [0, 1, 2, 3, 3], [0x08 | 0x30, 0x01 | 0x0C]),
        (1, [1, 0, 1, 1, 0, 0, 0, 1, 1], [0b10011, 0b10010]),
    ],
)  # fmt: skip
def test_bytes_are_planes(bits, codes, data):
    q = -(-len(codes) // (8 // bits))
    by_hand = [0] * q
    for place, code in enumerate(codes):
        by_hand[place % q] |= code << bits * (place // q)
    assert packed([codes], bits).tolist() == [by_hand]
    if bits == 4:
        assert by_hand == data


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("width", [*range(1, 34), 4095, 4096])
def test_codes_come_back_at_every_width(bits, width):
    draw = torch.Generator().manual_seed(width)
    codes = torch.randint(0, 1 << bits, (3, width), generator=draw)
    out = packed(codes.tolist(), bits)
    assert out.shape == (3, -(-width * bits // 8))
    assert torch.equal(unpack(out, bits, width).long(), codes)


def test_places_are_twelve_bits_each():
    places = torch.tensor([[0x001, 0x102, 0x203, 0xABC, 0xFFF]])
    # first three below, last two above; the last half byte is empty
    assert pack_places(places).tolist() == [[0x01, 0x02, 0x03, 0xC0, 0xF1, 0x02, 0xAB, 0xFF]]
    assert places_bytes(5) == 8


@pytest.mark.parametrize("count", [1, 2, 3, 64, 77, 4095, 4096])
def test_places_come_back_at_every_count(count):
    draw = torch.Generator().manual_seed(count)
    rows = [torch.randperm(4096, generator=draw)[:count].sort().values for _ in range(3)]
    places = torch.stack(rows)
    data = pack_places(places)
    assert (data.dtype, tuple(data.shape)) == (torch.uint8, (3, -(-12 * count // 8)))
    assert torch.equal(unpack_places(data, count=count, width=4096), places)


def test_the_same_share_of_every_row_is_kept_and_one_at_least():
    assert [kept(width, 64) for width in (1, 63, 64, 65, 4095, 4096)] == [1, 1, 1, 2, 64, 64]
    assert [kept(width, 4096) for width in (1, 100, 4096)] == [1, 100, 4096]


def test_of_equals_the_first_are_kept_and_nan_is_largest():
    rows = torch.tensor([[1.0, -2.0, 2.0, -2.0, 0.0], [0.0, -0.0, 0.0, 0.0, 0.0]])
    assert largest_places(rows, 2).tolist() == [[1, 2], [0, 1]]
    rows[1, 4], rows[0, 0] = torch.nan, torch.inf
    assert largest_places(rows, 1).tolist() == [[0], [4]]


@pytest.mark.parametrize("name", ["fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "dct2-64"])
def test_what_a_writer_keeps_in_memory_is_small(name: str) -> None:
    """All parts but the first wait for the tensor's end."""
    sizes = [
        dtype.itemsize * math.prod(shape)
        for dtype, shape in codec_named(name).layout((1 << 20,)).values()
    ]
    assert sum(sizes[1:]) <= (1 << 22) / 64
