"""Every codec keeps the same promises: shape, determinism, stated error and size, finite values."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from pww.codec import FORMS, codec_named, is_finite
from pww.config.check_codec import AVERAGING as SHORT
from pww.config.load import compose
from pww.errors import NotFiniteError, PayloadError
from pww.transport.fingerprint import PIECE

CONF = Path(__file__).parents[2] / "conf" / "codec"
AVERAGING = SHORT.split()
DITHER = ("dither-4", "dither-8")
NAMES = (
    "fp32", "bf16", "fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "topk-256-b4",
    "topk-41-b8", "topk-4096-b16", "randomk-64", "randomk-100-raw", "dct2-64", *DITHER,
)  # fmt: skip
SHAPES = [
    (), (0,), (3, 0, 2), (1,), (4095,), (4096,), (4097,), (65, 63), (1, 4096), (8, 3, 3, 3),
    (2, 64 * 4096 + 3),
]  # fmt: skip
IDEMPOTENT = ("fp32", "bf16", "fp16")


def block_bits(name, n):
    """Bits of a block of `n` values, put together from the specification alone."""
    kind, *rest = name.split("-")
    if kind == "dither":
        return -(-int(rest[0]) * n // 8) * 8 + 64
    whole = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8, "int4": 4, "int2": 2, "sign": 1}
    scales = {"fp32": 0, "bf16": 0, "int2": 64}
    if kind in whole:
        return -(-whole[kind] * n // 8) * 8 + scales.get(kind, 32)
    k = math.ceil(Fraction(int(rest[0]) * n, 4096))
    if kind == "randomk":
        return 32 + 32 * k
    bits = 16 if kind == "dct2" else int(rest[1][1:])
    return -(-12 * k // 8) * 8 + -(-bits * k // 8) * 8 + (64 if bits == 2 else 32)


def values(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    scale = torch.randint(-60, 20, shape, generator=generator).double()
    return (x.double() * torch.exp2(scale)).float()


def delta(shape, seed=0):
    """Like a delta: of one scale, with exact ties and zeros in it."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1e-3
    return torch.where(x.abs() < 1e-4, 0.0, (x * 2**14).round() / 2**14)


def within(codec, x, back):
    return bool(((x.double() - back.double()).abs() <= codec.bound(x).double()).all())


def same(one, two):
    return list(one) == list(two) and all(torch.equal(one[n], two[n]) for n in one)


@pytest.fixture(params=NAMES)
def codec(request):
    return codec_named(request.param)


@pytest.mark.parametrize("make", [values, delta])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoding_gives_back_the_tensor_within_the_bound(codec, shape, make):
    x = make(shape)
    before = x.clone()
    parts = codec.encode(x, seed=7)
    back = codec.decode(parts, shape)
    assert (back.dtype, tuple(back.shape)) == (torch.float32, shape)
    assert back.is_contiguous()
    assert within(codec, x, back)
    assert torch.equal(x, before)
    assert {n: (p.dtype, tuple(p.shape)) for n, p in parts.items()} == codec.layout(shape)
    assert list(parts) == list(codec.layout(shape))


@pytest.mark.parametrize("shape", [*SHAPES, (151_936, 1024)])
def test_bytes_are_as_many_as_stated(codec, shape):
    n = math.prod(shape)
    bits = n // 4096 * block_bits(codec.name, 4096)
    if n % 4096:
        bits += block_bits(codec.name, n % 4096)
    assert codec.size_bytes(shape) * 8 == bits
    layout = codec.layout(shape).values()
    assert sum(dtype.itemsize * math.prod(part) for dtype, part in layout) * 8 == bits


@pytest.mark.parametrize(
    ("name", "most"),
    [("int8", 8.01), ("int4", 4.01), ("topk-256-b2", 0.9), ("topk-64-b2", 0.25), ("bf16", 16)],
)
def test_bits_a_parameter_are_what_was_asked_for(name, most):
    assert codec_named(name).size_bytes((1 << 24,)) * 8 / (1 << 24) <= most


def test_encoding_is_deterministic(codec):
    one, two = (codec.encode(delta((3 * 4096 + 5,), 9), seed=3) for _ in range(2))
    assert same(one, two)


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_encoding_what_was_decoded_changes_nothing(name):
    codec = codec_named(name)
    once = codec.decode(codec.encode(values((4097,), 4)), (4097,))
    assert torch.equal(codec.decode(codec.encode(once.clone()), (4097,)), once)


def test_a_transposed_tensor_is_its_values_not_its_memory(codec):
    x = values((5, 7)).t()
    assert same(codec.encode(x), codec.encode(x.contiguous()))
    assert within(codec, x, codec.decode(codec.encode(x), (7, 5)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 4096, 300_000])
def test_nan_and_inf_are_refused_before_the_cast(codec, bad, at):
    x = values((300_001,))
    x[at] = bad
    with pytest.raises(
        NotFiniteError, match="1 of 300001 values are nan or inf; such a delta is never"
    ):
        codec.encode(x)


@pytest.mark.parametrize(
    "many",
    [
        [0.0, -0.0, 1e-45, -1e-40, 1.2e-38], [0.0] * 9, [1e-45], [-(2.0**-101), 1e-45],
        [3e38, -3.38e38, 1e-45], [2.0**-89] + [0.0] * 4095,
    ],
)  # fmt: skip
def test_denormals_zeros_and_giants_stay_within_the_bound(codec, many):
    if codec.name in ("dct2-64", "randomk-64", "int2", "sign", *DITHER):
        many = [value for value in many if abs(value) < 1e38]  # refused, see below
    x = torch.tensor(many)
    back = codec.decode(codec.encode(x), (len(many),))
    assert is_finite(back)
    assert within(codec, x, back)
    if codec.name in ("fp32", "bf16"):
        assert torch.equal(torch.signbit(back), torch.signbit(x))


def test_what_would_become_infinite_is_refused_and_nothing_else(codec):
    x = torch.full((5,), 3.4e38)
    if codec.name in ("bf16", "dct2-64", "randomk-64", "int2", "sign", *DITHER):
        with pytest.raises(NotFiniteError, match="use codec=fp32, and doubt the delta"):
            codec.encode(x)
    else:
        assert is_finite(codec.decode(codec.encode(x), (5,)))


@pytest.mark.parametrize("name", ["fp32", "int8", "int4"])
def test_the_largest_finite_value_never_becomes_infinite(name):
    x = torch.full((7,), torch.finfo(torch.float32).max)
    back = codec_named(name).decode(codec_named(name).encode(x), (7,))
    assert is_finite(back)
    assert (back <= x).all()


def test_the_sum_of_what_was_sent_and_the_last_residual_is_the_sum_of_all(codec):
    """Error feedback loses nothing but fp32 rounding, with whatever codec."""
    shape, residual = (4097,), torch.zeros(4097)
    moved, sent = torch.zeros(4097, dtype=torch.float64), torch.zeros(4097, dtype=torch.float64)
    largest = 0.0
    for step in range(8):
        x = delta(shape, step)
        v = x + residual
        back = codec.decode(codec.encode(v, seed=1000 * step), shape)
        residual = v - back
        moved += x
        sent += back
        largest = max(largest, float(v.abs().max()), float(back.abs().max()))
    assert ((sent + residual) - moved).abs().max() <= 16 * largest * 2.0**-24
    if codec.name not in ("fp32", "randomk-64"):
        assert residual.norm() < moved.norm(), "feedback does not run away"


def test_what_is_lost_is_shorter_than_the_tensor(codec):
    """A contraction: what error feedback needs. Scaled draws are the exception."""
    x = delta((3 * 4096 + 100,), 5)
    lost = x - codec.decode(codec.encode(x), tuple(x.shape))
    assert (lost.norm() < x.norm()) == (codec.name != "randomk-64")


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * 4096 + 17, 70 * 4096 + 1])
def test_any_run_of_granules_is_where_the_law_says(codec, size):
    assert PIECE % codec.granule == 0
    x = delta((size,), 3)
    parts = codec.encode(x)
    whole = codec.decode(parts, (size,))
    unit = codec.granule * max(1, 4096 // codec.granule)
    for start in range(0, size + 1, 16 * unit):
        for n in {0, min(unit, size - start), min(2 * unit, size - start), size - start}:
            before, layout = codec.layout((start,)), codec.layout((n,))
            some = {}
            for name, (dtype, shape) in layout.items():
                at = math.prod(before[name][1])
                some[name] = parts[name].reshape(-1)[at : at + math.prod(shape)]
                assert (some[name].dtype, tuple(some[name].shape)) == (dtype, shape)
            back = codec.decode(some, (n,))
            alone = codec.encode(x[start : start + n], seed=start // codec.granule)
            if codec.exact_decode:
                assert torch.equal(back, whole[start : start + n])
                assert same(alone, some)
            else:
                assert torch.allclose(back, whole[start : start + n], atol=1e-8)
                assert within(codec, x[start : start + n], codec.decode(alone, (n,)))


def test_parts_of_another_tensor_are_refused(codec):
    parts = codec.encode(values((5,)))
    with pytest.raises(PayloadError, match=r"damaged, or of another tensor"):
        codec.decode(parts, (5000,))
    with pytest.raises(PayloadError, match=r"is absent and must be"):
        codec.decode({}, (5,))
    with pytest.raises(PayloadError, match=r"part x is torch.float32 \(1,\) and must be absent"):
        codec.decode({**parts, "x": torch.ones(1)}, (5,))
    for part, held in parts.items():
        wrong = {**parts, part: held.to(torch.float64)}
        with pytest.raises(PayloadError, match=rf"part {part} is torch.float64"):
            codec.decode(wrong, (5,))


def test_only_what_says_so_decodes_differently_elsewhere(codec):
    assert codec.exact_decode == (not codec.name.startswith("dct"))


def test_names_are_canonical(codec):
    assert codec_named(codec.name).name == codec.name
    for odd in (codec.name + "-", codec.name + "-x", codec.name.upper(), " " + codec.name):
        with pytest.raises(PayloadError, match="is not known here"):
            codec_named(odd)


@pytest.mark.parametrize(
    "name",
    ["zip", "", "topk", "topk-64", "topk-064-b2", "topk-0-b2", "topk-4097-b2", "topk-64-b3",
     "topk--b2", "topk-\u0664-b2", "randomk", "randomk-64-b2", "dct2-64-b2", "dct-64",
     "int4-64", "z" * 5000],
)  # fmt: skip
def test_an_unknown_codec_is_refused_by_name(name):
    with pytest.raises(PayloadError) as caught:
        codec_named(name)
    assert str(caught.value) == (
        f"codec {name[:40]!r} is not known here (known: {', '.join(FORMS)}); "
        "run the same version of pww on every side"
    )


def test_every_configuration_is_a_codec_and_every_codec_has_one():
    names = set()
    for path in sorted(CONF.glob("*.yaml")):
        section = compose([f"codec={path.stem}", *AVERAGING]).codec
        assert section.kind == path.stem
        assert codec_named(section.name).name == section.name
        assert section.feedback == (section.kind not in ("fp32", "randomk", "dither"))
        names.add(section.name.split("-")[0])  # the kind, but for dct2
    assert names == {form.split("-")[0] for form in FORMS} == {n.split("-")[0] for n in NAMES}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["codec=topk", *AVERAGING], "topk-64-b2"),
        (
            ["codec=topk", "codec.keep=256", "codec.value_bits=16", *AVERAGING],
            "topk-256-b16",
        ),
        (["codec=randomk", "codec.keep=1"], "randomk-1"),
        (["codec=randomk", "codec.feedback=true", *AVERAGING], "randomk-64-raw"),
        (["codec=dct", "codec.keep=4096"], "dct2-4096"),
    ],
)
def test_parameters_of_a_configuration_are_in_the_name(words, name):
    assert codec_named(compose(words).codec.name).name == name


def test_a_finite_value_that_a_half_would_make_infinite_is_refused():
    for name, largest in (("bf16", r"bf16's largest, 3\.38953e\+38"), ("fp16", "fp16's largest w")):
        with pytest.raises(NotFiniteError, match=rf"3\.4027e\+38 is above {largest}"):
            codec_named(name).encode(torch.tensor([1.0, 3.4027e38]))
    assert is_finite(
        codec_named("fp16").decode(codec_named("fp16").encode(torch.tensor([3.401e38])), (1,))
    )


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


@pytest.mark.parametrize("shape", [(), (4097,), (3, 5000)])
def test_a_codec_works_where_its_tensor_lives(codec, shape, monkeypatch):
    """Nothing is made on, or brought to, a device of the codec's own choice.

    The default device is one that holds no values: what is made there cannot be told from what a
    codec would make on the CPU beside a tensor on an accelerator.
    """
    x = delta(shape)
    expected = codec.encode(x, seed=3)
    back = codec.decode(expected, shape)

    def refused(*_, **__):
        raise AssertionError("left torch")

    for name in ("numpy", "tolist", "cpu", "__array__"):
        monkeypatch.setattr(torch.Tensor, name, refused)
    with torch.device("meta"):
        parts = codec.encode(x, seed=3)
        again = codec.decode(parts, shape)
    monkeypatch.undo()
    assert same(parts, expected)
    assert torch.equal(again, back)
