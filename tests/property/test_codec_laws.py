"""Any finite values, any parts: within the bound or refused, and nothing but our own errors."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pww.codec import blocks, codec_named
from pww.errors import NotFiniteError, PayloadError

NAMES = (
    "fp32", "bf16", "fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "topk-1000-b4",
    "topk-3000-b8", "topk-500-b16", "randomk-64", "randomk-1000-raw", "dct2-2000", "dither-4",
)  # fmt: skip
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    few=st.lists(FLOATS, max_size=40),
    length=st.sampled_from([0, 1, 4096, 4097, 9000]),
    seed=st.integers(0, 2**64),
)
def test_any_values_stay_within_the_bound_or_are_refused(name, few, length, seed):
    codec = codec_named(name)
    x = torch.tensor(few, dtype=torch.float32)
    if few:
        x = torch.cat((x, x[torch.arange(length) % len(few)]))
    try:
        parts = codec.encode(x, seed=seed)
    except NotFiniteError:
        assert float(x.abs().max()) > 1e34, "only giants are refused"
        return
    back = codec.decode(parts, tuple(x.shape))
    assert bool(torch.isfinite(back).all())
    assert bool(((x.double() - back.double()).abs() <= codec.bound(x).double()).all())


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    size=st.sampled_from([0, 1, 5, 64, 100, 4096, 4099]),
    data=st.binary(min_size=1, max_size=64),
    at=st.integers(0, 10_000),
)
def test_parts_of_any_bytes_decode_to_finite_values_or_are_refused(name, size, data, at):
    """Bytes overwritten at any place: fp32 and bf16 pass them on, and the central looks."""
    codec = codec_named(name)
    parts = codec.encode(torch.randn(size, generator=torch.Generator().manual_seed(size)))
    held = list(parts.values())[at % len(parts)]
    raw = held.reshape(-1).view(torch.uint8).clone()
    if raw.numel():
        for place, byte in enumerate(data):
            raw[(at + place) % raw.numel()] = byte
    name_of = list(parts)[at % len(parts)]
    broken = {**parts, name_of: raw.view(held.dtype).reshape(held.shape)}
    try:
        back = codec.decode(broken, (size,))
    except PayloadError:
        return
    assert tuple(back.shape) == (size,)
    assert name in ("fp32", "bf16", "randomk-1000-raw") or bool(torch.isfinite(back).all())


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([name for name in NAMES if not name.startswith("dct")]),
    size=st.integers(0, 9 * 4096),
    rows=st.integers(1, 5),
    threads=st.integers(1, 2),
)
def test_bits_depend_neither_on_runs_nor_on_threads(name, size, rows, threads):
    codec = codec_named(name)
    x = torch.randn(size, generator=torch.Generator().manual_seed(size))
    parts = codec.encode(x, seed=11)
    whole = codec.decode(parts, (size,))
    before, run = torch.get_num_threads(), blocks.RUN
    try:
        torch.set_num_threads(threads)
        blocks.RUN = rows * blocks.BLOCK
        again = codec.encode(x, seed=11)
        back = codec.decode(parts, (size,))
    finally:
        torch.set_num_threads(before)
        blocks.RUN = run
    assert all(torch.equal(again[part], parts[part]) for part in parts)
    assert torch.equal(back, whole)
    assert codec.size_bytes((size,)) == sum(p.numel() * p.itemsize for p in parts.values())
    assert math.prod(back.shape) == size
