"""Codecs against independent NumPy: the same bits, written from the formats' descriptions."""

import numpy as np
import pytest
import torch

from pww.codec import codec_named

F = np.float32
SIZES = [1, 2, 3, 7, 8, 9, 64, 100, 4095, 4096, 4097, 2 * 4096 + 333]


def inputs(n, seed):
    """Spread over magnitudes, with ties, zeros and both signs of zero."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(n).astype(F) * F(2) ** draw.integers(-12, 3, n).astype(F)
    x[draw.random(n) < 0.2] = 0
    x[draw.random(n) < 0.1] *= F(-0.0)
    tied = draw.random(n) < 0.3
    x[tied] = np.sign(x[tied]) * F(0.375)
    return x


def blocks(x):
    return [x[i : i + 4096] for i in range(0, len(x), 4096)]


def step_codes(block, levels):
    """Scale and codes of int8 and int4, a value at a time, in fp32 only."""
    peak = np.abs(block).max()
    down = F(1) / F(levels)
    down = np.nextafter(down, F(0))
    scale = F(peak * down) if peak >= F(2.0**-100) else F(0)
    if scale == 0:
        return scale, [0] * len(block)
    return scale, [int(np.rint(value / scale)) for value in block]


def nibbles(codes, bits):
    """Byte j holds codes j, j + q, j + 2q …, the first lowest."""
    per = 8 // bits
    q = -(-len(codes) // per)
    data = [0] * q
    for place, code in enumerate(codes):
        data[place % q] |= code << (bits * (place // q))
    return data


def tree_sum(values):
    """Half added to half."""
    size = 1
    while size < len(values):
        size *= 2
    values = np.concatenate([values, np.zeros(size - len(values), F)])
    while len(values) > 1:
        half = len(values) // 2
        values = values[:half] + values[half:]
    return values[0]


def two_levels(block):
    sizes = np.abs(block)
    mean = tree_sum(sizes) / F(len(block))
    large = sizes > mean
    scales = [
        tree_sum(np.where(side, sizes, F(0))) / F(side.sum()) if side.any() else F(0)
        for side in (~large, large)
    ]
    codes = [int(value < 0) + 2 * int(big) for value, big in zip(block, large, strict=True)]
    decoded = [(-1 if code & 1 else 1) * scales[code >> 1] for code in codes]
    return scales, nibbles(codes, 2), decoded


def encoded(name, x):
    parts = codec_named(name).encode(torch.from_numpy(x.copy()))
    return {part: values.numpy() for part, values in parts.items()}, codec_named(name)


def decoded(codec, parts, n):
    return codec.decode({k: torch.from_numpy(v) for k, v in parts.items()}, (n,)).numpy()


@pytest.mark.parametrize("n", SIZES)
def test_int8_is_numpys_bit_for_bit(n):
    x = inputs(n, n)
    parts, codec = encoded("int8", x)
    rows = [step_codes(block, 127) for block in blocks(x)]
    assert np.array_equal(parts["scales"], np.array([scale for scale, _ in rows], F))
    assert parts["codes"].tolist() == [code for _, codes in rows for code in codes]
    back = [F(code) * scale for scale, codes in rows for code in codes]
    assert np.array_equal(decoded(codec, parts, n), np.array(back, F))


@pytest.mark.parametrize("n", SIZES)
def test_int4_is_numpys_bit_for_bit(n):
    x = inputs(n, n + 1)
    parts, codec = encoded("int4", x)
    rows = [step_codes(block, 7) for block in blocks(x)]
    assert np.array_equal(parts["scales"], np.array([scale for scale, _ in rows], F))
    data = [byte for _, codes in rows for byte in nibbles([code + 8 for code in codes], 4)]
    assert parts["codes"].tolist() == data
    back = [F(code) * scale for scale, codes in rows for code in codes]
    assert np.array_equal(decoded(codec, parts, n), np.array(back, F))


@pytest.mark.parametrize("n", SIZES)
def test_int2_is_numpys_bit_for_bit(n):
    x = inputs(n, n + 2)
    parts, codec = encoded("int2", x)
    rows = [two_levels(block) for block in blocks(x)]
    assert np.array_equal(parts["scales"], np.array([scales for scales, _, _ in rows], F).ravel())
    assert parts["codes"].tolist() == [byte for _, data, _ in rows for byte in data]
    back = np.array([value for _, _, values in rows for value in values], F)
    assert np.array_equal(decoded(codec, parts, n), back)


@pytest.mark.parametrize("n", SIZES)
def test_sign_is_numpys_bit_for_bit(n):
    x = inputs(n, n + 3)
    parts, codec = encoded("sign", x)
    scales = [tree_sum(np.abs(block)) / F(len(block)) for block in blocks(x)]
    assert np.array_equal(parts["scales"], np.array(scales, F))
    data = [byte for block in blocks(x) for byte in nibbles([int(v < 0) for v in block], 1)]
    assert parts["codes"].tolist() == data
    back = [-scale if v < 0 else scale
            for scale, block in zip(scales, blocks(x), strict=True) for v in block]  # fmt: skip
    assert np.array_equal(decoded(codec, parts, n), np.array(back, F))


@pytest.mark.parametrize("n", SIZES)
def test_fp16_is_numpys_bit_for_bit(n):
    x = inputs(n, n + 4)
    parts, codec = encoded("fp16", x)
    scales = [
        F(2.0 ** (np.frexp(np.abs(block).max())[1] - 15)) if block.any() else F(0)
        for block in blocks(x)
    ]
    assert np.array_equal(parts["scales"], np.array(scales, F))
    back = []
    for scale, block in zip(scales, blocks(x), strict=True):
        halves = (block / (scale or F(1))).astype(np.float16)
        assert np.abs(halves).max() <= 2**15
        back.append(halves.astype(F) * scale)
    assert np.array_equal(decoded(codec, parts, n), np.concatenate(back))


def places_bytes(places):
    """Twelve bits each, in three planes."""
    half = -(-len(places) // 2)
    first, second = places[:half], places[half:]
    low = [place & 255 for place in first]
    middle = [place >> 8 for place in first]
    for i, place in enumerate(second):
        middle[i] |= (place & 15) << 4
    return low + middle + [place >> 4 for place in second]


@pytest.mark.parametrize("keep", [1, 64, 77, 4096])
@pytest.mark.parametrize("n", SIZES)
def test_topk_is_numpys_bit_for_bit(n, keep):
    """Ties go to the lower place: NumPy's stable sort is the reference."""
    x = inputs(n, n + keep)
    parts, codec = encoded(f"topk-{keep}-b4", x)
    want_places, want_scales, want_codes, back = [], [], [], np.zeros(n, F)
    for number, block in enumerate(blocks(x)):
        k = -(-keep * len(block) // 4096)
        places = np.sort(np.argsort(-np.abs(block), kind="stable")[:k])
        scale, codes = step_codes(block[places], 7)
        want_places += places_bytes([int(place) for place in places])
        want_scales.append(scale)
        want_codes += nibbles([code + 8 for code in codes], 4)
        back[number * 4096 + places] = np.array(codes, F) * scale
    assert parts["places"].tolist() == want_places
    assert np.array_equal(parts["scales"], np.array(want_scales, F))
    assert parts["codes"].tolist() == want_codes
    assert np.array_equal(decoded(codec, parts, n), back)


@pytest.mark.parametrize("name", ["topk-64-b2", "topk-64-b8", "topk-64-b16", "topk-77-b2"])
def test_values_of_topk_are_those_of_the_codec_of_that_many_bits(name):
    x = torch.from_numpy(inputs(4096, 1))
    _, keep, bits = name.split("-")
    whole = codec_named(name).decode(codec_named(name).encode(x), (4096,))
    places = np.sort(np.argsort(-np.abs(x.numpy()), kind="stable")[: int(keep)])
    inner = codec_named({"b2": "int2", "b8": "int8", "b16": "fp16"}[bits])
    kept = x[torch.from_numpy(places)]
    expected = torch.zeros(4096)
    expected[torch.from_numpy(places)] = inner.decode(inner.encode(kept), tuple(kept.shape))
    assert torch.equal(whole, expected)


def test_every_magnitude_equal_keeps_the_first_places():
    x = torch.full((2 * 4096,), -0.5)
    back = codec_named("topk-64-b2").decode(codec_named("topk-64-b2").encode(x), (8192,))
    assert torch.equal(back.nonzero().view(-1) % 4096, torch.arange(64).repeat(2))
    assert set(back.tolist()) == {0.0, -0.5}
