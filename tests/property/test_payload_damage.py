"""No damage passes: any flipped bit, cut or addition is an error of ours, whatever it hits."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pww.codec import codec_named
from pww.errors import PayloadError
from pww.transport.payload import PayloadReader, write_payload
from pww.transport.tensorfile import TensorReader

TENSORS = {
    "layers.0.w": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(1.0),
    "e": torch.empty(0),
}
SHAPES = {name: tuple(t.shape) for name, t in TENSORS.items()}
KINDS = (
    "fp32", "bf16", "fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "randomk-64", "dct2-64",
    "dither-4",
)  # fmt: skip


def make(kind):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p")
        info = write_payload(path, TENSORS.items(), SHAPES, codec_named(kind))
        return path.read_bytes(), info


WHOLE = {kind: make(kind) for kind in KINDS}


@st.composite
def damaged(draw):
    kind = draw(st.sampled_from(KINDS))
    data, info = WHOLE[kind]
    match draw(st.sampled_from(["flip", "cut", "grow", "drop"])):
        case "flip":
            at = draw(st.integers(0, len(data) - 1))
            bit = draw(st.integers(0, 7))
            data = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
        case "cut":
            data = data[: draw(st.integers(0, len(data) - 1))]
        case "grow":
            data += draw(st.binary(min_size=1, max_size=64))
        case "drop":
            at = draw(st.integers(0, len(data) - 1))
            data = data[:at] + data[at + 1 :]
    return data, info


@settings(max_examples=300, deadline=None)
@given(case=damaged())
def test_a_damaged_payload_never_opens(case):
    data, info = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p")
        path.write_bytes(data)
        with pytest.raises(PayloadError):
            PayloadReader(path, info)


@settings(max_examples=300, deadline=None)
@given(case=damaged())
def test_a_damaged_structure_is_refused_or_consistent(case):
    """Without a digest a reader may accept changed values or names, but never wrong places."""
    data, _ = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p")
        path.write_bytes(data)
        try:
            reader = TensorReader(path)
        except PayloadError:
            return
        with reader:
            sizes = [reader.get(n).numel() * reader.dtype(n).itemsize for n in reader.names]
        header = 8 + int.from_bytes(data[:8], "little")
        assert header + sum(sizes) == len(data)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200))
def test_garbage_is_refused(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p")
        path.write_bytes(len(data).to_bytes(8, "little") + data)
        try:
            reader = TensorReader(path)
        except PayloadError:
            return
        with reader:
            assert reader.names == ()  # only an empty table can be that short
