"""Payloads: encoded, announced, verified, decoded; everything that differs is refused by name."""

import json
import os

import pytest
import torch
from blake3 import blake3

from pww.codec import codec_named
from pww.errors import NotFiniteError, PayloadError
from pww.transport.payload import (
    PayloadReader,
    verify,
    write_payload,
    write_theta,
)
from pww.transport.tensorfile import TensorReader, TensorWriter, state_hash
from pww.wire import PayloadInfo

TENSORS = {"w": torch.randn(5, 3), "b": torch.tensor(0.5), "none": torch.empty(0)}
SHAPES = {name: tuple(t.shape) for name, t in TENSORS.items()}
KINDS = ("fp32", "bf16", "int8", "int4", "topk-64-b2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_comes_back_as_its_codec_says(tmp_path, kind):
    codec = codec_named(kind)
    info = write_payload(tmp_path / "p", TENSORS.items(), SHAPES, codec)
    data = (tmp_path / "p").read_bytes()
    assert info == PayloadInfo(codec=kind, size_bytes=len(data), digest=blake3(data).hexdigest())
    header = 8 + int.from_bytes(data[:8], "little")
    assert len(data) == header + sum(codec.size_bytes(shape) for shape in SHAPES.values())
    with PayloadReader(tmp_path / "p", info) as reader:
        assert reader.shapes == SHAPES
        for name, tensor in TENSORS.items():
            expected = codec.decode(codec.encode(tensor), SHAPES[name])
            assert torch.equal(reader.tensor(name), expected)
        with pytest.raises(PayloadError, match="no tensor x in the payload"):
            reader.tensor("x")


@pytest.mark.parametrize("kind", KINDS)
def test_what_encoding_loses_is_told_tensor_by_tensor(tmp_path, kind):
    lost = {}
    info = write_payload(
        tmp_path / "p", TENSORS.items(), SHAPES, codec_named(kind), lost=lost.__setitem__
    )
    assert list(lost) == list(TENSORS)
    with PayloadReader(tmp_path / "p", info) as reader:
        for name, tensor in TENSORS.items():
            assert torch.equal(lost[name], (tensor - reader.tensor(name)).reshape(-1))
    assert bool(lost["w"].any()) == (kind != "fp32")


@pytest.mark.parametrize("kind", [*KINDS, "randomk-64", "dct2-64", "int2", "sign", "fp16"])
def test_a_large_tensor_is_encoded_in_runs_as_if_it_were_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("pww.transport.payload.PIECE", 8192)
    codec = codec_named(kind)
    x = torch.randn(3 * 8192 + 77, generator=torch.Generator().manual_seed(1))
    lost = []
    info = write_payload(
        tmp_path / "runs", [("x", x)], {"x": tuple(x.shape)}, codec, seed="s",
        lost=lambda _, run: lost.append(run),
    )  # fmt: skip
    assert [len(run) for run in lost] == [8192, 8192, 8192, 77]
    monkeypatch.setattr("pww.transport.payload.PIECE", 1 << 20)
    whole = write_payload(tmp_path / "whole", [("x", x)], {"x": tuple(x.shape)}, codec, seed="s")
    assert info == whole
    with PayloadReader(tmp_path / "runs", info) as reader:
        assert torch.equal(torch.cat(lost), x - reader.tensor("x"))


def test_codecs_that_draw_draw_anew_for_every_payload_and_tensor(tmp_path):
    codec = codec_named("randomk-1")
    x = torch.arange(1.0, 4097.0)
    shapes = {"a": (4096,), "b": (4096,)}

    def drawn(seed):
        info = write_payload(tmp_path / seed, [("a", x), ("b", x)], shapes, codec, seed=seed)
        with PayloadReader(tmp_path / seed, info) as reader:
            return [float(reader.tensor(name).sum()) for name in shapes]

    seen = [value for seed in ("x 1", "x 2", "y 1") for value in drawn(seed)]
    assert len(set(seen)) == 6, "six draws of one in 4096; fixed seeds: they differ or never do"
    assert drawn("x 1") == seen[:2]


def test_nan_names_the_tensor_and_leaves_no_file(tmp_path):
    bad = TENSORS | {"none": torch.tensor([float("nan")])}
    shapes = SHAPES | {"none": (1,)}
    with pytest.raises(NotFiniteError, match="tensor none: 1 of 1 values are nan or inf"):
        write_payload(tmp_path / "p", bad.items(), shapes, codec_named("bf16"))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_shape_names_the_tensor_and_leaves_no_file(tmp_path):
    with pytest.raises(PayloadError, match=r"tensor b has shape \(1,\), announced") as caught:
        write_payload(
            tmp_path / "p",
            [("w", TENSORS["w"]), ("b", torch.zeros(1))],
            SHAPES,
            codec_named("fp32"),
        )
    assert not isinstance(caught.value, NotFiniteError), "the model is wrong and not its values"
    assert list(tmp_path.iterdir()) == []


def written(path, metadata, tensors):
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    with TensorWriter(path, layout, metadata) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        done = writer.close()
    return PayloadInfo(codec="fp32", size_bytes=done.size_bytes, digest=done.digest)


ONE = {"w/values": torch.zeros(2)}


@pytest.mark.parametrize(
    ("metadata", "tensors", "text"),
    [
        ({}, ONE, "written by codec None, announced was fp32"),
        ({"codec": "bf16"}, ONE, "written by codec 'bf16', announced was fp32"),
        ({"codec": "fp32"}, ONE, "table of shapes cannot be read"),
        ({"codec": "fp32", "shapes": "[]"}, ONE, "table of shapes cannot be read"),
        ({"codec": "fp32", "shapes": '{"w":[-2]}'}, ONE, "a shape is a list of counts"),
        ({"codec": "fp32", "shapes": '{"w":[true]}'}, ONE, "a shape is a list of counts"),
        ({"codec": "fp32", "shapes": '{"w":[3]}'}, ONE, "tensor w/values is not what its table"),
        ({"codec": "fp32", "shapes": "{}"}, ONE, "tensor w/values is not what its table"),
        ({"codec": "fp32", "shapes": '{"w":[2],"v":[1]}'}, ONE, "tensor v/values is not what"),
        ({"codec": "fp32", "shapes": '{"w":[2]}'}, {"w/values": torch.zeros(2).half()},
         "tensor w/values is not what its table"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_payload_is_refused(tmp_path, metadata, tensors, text):
    info = written(tmp_path / "p", metadata, tensors)
    with pytest.raises(PayloadError, match=text):
        PayloadReader(tmp_path / "p", info)


def test_size_digest_and_codec_are_checked(tmp_path):
    info = write_payload(tmp_path / "p", TENSORS.items(), SHAPES, codec_named("fp32"))
    for change, text in (
        ({"size_bytes": info.size_bytes + 1}, f"p has {info.size_bytes} bytes, announced were"),
        ({"digest": "0" * 64}, "p has BLAKE3 .* announced was 0000.*damaged; send it again"),
        ({"codec": "zip"}, "codec 'zip' is not known here"),
    ):
        with pytest.raises(PayloadError, match=text):
            PayloadReader(tmp_path / "p", info.model_copy(update=change))


def test_theta_is_a_plain_file(tmp_path):
    info = write_theta(tmp_path / "t", TENSORS.items(), SHAPES)
    assert info.codec == "fp32"
    with TensorReader(tmp_path / "t") as reader:
        assert reader.names == tuple(TENSORS)
        verify(reader, info, what="theta")
    assert len(state_hash(tmp_path / "t")) == 64


def test_the_table_of_shapes_is_json(tmp_path):
    write_payload(tmp_path / "p", TENSORS.items(), SHAPES, codec_named("fp32"))
    with TensorReader(tmp_path / "p") as reader:
        assert json.loads(reader.metadata["shapes"]) == {"w": [5, 3], "b": [], "none": [0]}
        assert reader.names == ("w/values", "b/values", "none/values")
    assert os.listdir(tmp_path) == ["p"]
