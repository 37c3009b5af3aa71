"""Every codec keeps the same promises: shape, determinism, stated error and size, finite values."""

import math

import pytest
import torch

from pww.codec import KINDS, codec_named, get_codec, is_finite
from pww.errors import PayloadError

SHAPES = [
    (), (0,), (3, 0, 2), (1,), (4095,), (4096,), (4097,), (65, 63), (1, 4096), (8, 3, 3, 3),
]  # fmt: skip
BITS = {"fp32": 32, "bf16": 16, "int8": 8}
"""Bits of a value; `SCALE_BYTES` come with every block."""
SCALE_BYTES = {"int8": 4}


def values(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    scale = torch.randint(-60, 20, shape, generator=generator).double()
    return (x.double() * torch.exp2(scale)).float()


@pytest.fixture(params=KINDS)
def codec(request):
    return get_codec(request.param)


@pytest.mark.parametrize("shape", SHAPES)
def test_decoding_gives_back_the_tensor_within_the_bound(codec, shape):
    x = values(shape)
    before = x.clone()
    back = codec.decode(codec.encode(x), shape)
    assert (back.dtype, tuple(back.shape)) == (torch.float32, shape)
    assert back.is_contiguous()
    assert ((x.double() - back.double()).abs() <= codec.bound(x).double()).all()
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_are_as_laid_out_and_as_long_as_stated(codec, shape):
    parts = codec.encode(values(shape))
    assert {n: (p.dtype, tuple(p.shape)) for n, p in parts.items()} == codec.layout(shape)
    assert list(parts) == list(codec.layout(shape))
    size = sum(p.numel() * p.element_size() for p in parts.values())
    n = math.prod(shape)
    scales = SCALE_BYTES.get(codec.name, 0) * -(-n // 4096)
    assert size == codec.size_bytes(shape) == n * BITS[codec.name] // 8 + scales


def test_encoding_is_deterministic(codec):
    for _ in range(2):
        one, two = codec.encode(values((4097,), 9)), codec.encode(values((4097,), 9))
        assert all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_encoding_what_was_decoded_changes_nothing(kind):
    codec = get_codec(kind)
    once = codec.decode(codec.encode(values((4097,), 4)), (4097,))
    assert torch.equal(codec.decode(codec.encode(once.clone()), (4097,)), once)


def test_a_transposed_tensor_is_its_values_not_its_memory(codec):
    x = values((5, 7)).t()
    back = codec.decode(codec.encode(x), (7, 5))
    assert ((x.double() - back.double()).abs() <= codec.bound(x).double()).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 4096])
def test_nan_and_inf_are_refused_before_the_cast(codec, bad, at):
    x = values((4097,))
    x[at] = bad
    with pytest.raises(
        PayloadError, match="1 of 4097 values are nan or inf; such a delta is never"
    ):
        codec.encode(x)


def test_denormals_and_signed_zeros_stay_within_the_bound(codec):
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 1.2e-38, 3.0e38])
    back = codec.decode(codec.encode(x), (6,))
    assert ((x.double() - back.double()).abs() <= codec.bound(x).double()).all()
    if codec.name in ("fp32", "bf16"):
        assert torch.equal(torch.signbit(back[:2]), torch.tensor([False, True]))


def test_a_finite_value_that_bf16_would_make_infinite_is_refused():
    x = torch.tensor([1.0, 3.4e38])
    with pytest.raises(
        PayloadError, match=r"3\.4e\+38 is above bf16's largest, 3\.38953e\+38: use"
    ):
        get_codec("bf16").encode(x)


def test_an_unknown_codec_is_refused_by_name():
    assert codec_named("bf16").name == "bf16"
    with pytest.raises(PayloadError, match=r"codec 'zip' is not known here \(known: fp32, bf16, "):
        codec_named("zip")


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * 4096 + 17, 70 * 4096 + 1])
def test_any_run_of_granules_is_where_the_law_says(codec, size):
    x = values((size,), 3)
    parts, whole = codec.encode(x), codec.decode(codec.encode(x), (size,))
    unit = codec.granule * max(1, 4096 // codec.granule)
    for start in range(0, size + 1, 16 * unit):
        for n in {0, min(unit, size - start), min(2 * unit, size - start), size - start}:
            before, layout = codec.layout((start,)), codec.layout((n,))
            some = {}
            for name, (dtype, shape) in layout.items():
                at = math.prod(before[name][1])
                some[name] = parts[name].reshape(-1)[at : at + math.prod(shape)]
                assert (some[name].dtype, tuple(some[name].shape)) == (dtype, shape)
            assert torch.equal(codec.decode(some, (n,)), whole[start : start + n])
            alone = codec.encode(x[start : start + n], seed=start // codec.granule)
            assert all(torch.equal(alone[name], some[name]) for name in layout)


def test_parts_of_another_tensor_are_refused(codec):
    parts = codec.encode(values((5,)))
    with pytest.raises(PayloadError, match=r"damaged, or of another tensor"):
        codec.decode(parts, (6,))
    with pytest.raises(PayloadError, match=r"is absent and must be"):
        codec.decode({}, (5,))
    with pytest.raises(PayloadError, match=r"part x is torch.float32 \(1,\) and must be absent"):
        codec.decode({**parts, "x": torch.ones(1)}, (5,))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bad_value_anywhere_is_seen(value, dtype):
    x = torch.full((1000,), 3e38).to(dtype)
    assert is_finite(x)
    assert is_finite(x[:0])
    assert is_finite(torch.ones(3, dtype=torch.int64))
    for at in (0, 500, 999):
        bad = x.clone()
        bad[at] = value
        assert not is_finite(bad)
