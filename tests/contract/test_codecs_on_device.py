"""Every codec encodes a delta where it lives: the host's file to the bit, and little travels."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from accelerator import DEVICE, accelerator, far

from pww.codec import codec_named
from pww.errors import NotFiniteError
from pww.replica.differences import Differences
from pww.replica.residual import Feedback
from pww.trainer.shards import gather
from pww.transport.payload import write_payload, write_theta
from pww.transport.tensorfile import TensorReader, tensors

NAMES = (
    "fp32", "bf16", "fp16", "int8", "int4", "int2", "sign", "topk-64-b2", "topk-256-b4",
    "topk-41-b8", "topk-4096-b16", "randomk-64", "randomk-100-raw",
)  # fmt: skip
SHAPES = {"w": (3, 4097), "big": (2, 265_000), "none": (0,), "one": ()}


def values(seed):
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draws) for name, shape in SHAPES.items()}


class Model:
    """A trainer, as far as a delta is taken of it."""

    def __init__(self, state):
        self._state = state

    def tensors(self):
        yield from self._state.items()


def sent(folder, theta, inner, codec, before):
    """The file of a delta and that of its residual; norms."""
    folder.mkdir()
    differences = Differences(Model(inner), theta)
    with Feedback(SHAPES, before=before, after=folder / "after") as feedback:
        info = write_payload(
            folder / "delta", feedback.carried(differences), SHAPES, codec, seed="a",
            lost=feedback.keep,
        )  # fmt: skip
    return info, (folder / "delta").read_bytes(), (folder / "after").read_bytes(), differences


@pytest.fixture
def files(tmp_path):
    """theta_outer and a residual in force."""
    for seed, name in enumerate(("theta", "before")):
        write_theta(tmp_path / name, values(seed).items(), SHAPES)
    return tmp_path


def test_the_file_is_that_of_the_host_and_only_parts_come_home(files):
    inner = values(7)
    for name in NAMES:
        codec = codec_named(name)
        made = [sent(files / f"{name}-host", files / "theta", inner, codec, files / "before")]
        with accelerator() as device:
            there = {n: far(t) for n, t in inner.items()}
            made.append(
                sent(files / f"{name}-far", files / "theta", there, codec, files / "before")
            )
        (info, payload, after, host), (info_far, payload_far, after_far, away) = made
        assert (info, payload, after) == (info_far, payload_far, after_far), name
        assert (host.norm, host.drift) == (away.norm, away.drift)
        parts = sum(codec.size_bytes(shape) for shape in SHAPES.values())
        residual = sum(4 * t.numel() for t in inner.values())
        assert sum(device.home) == parts + residual, name


def test_what_comes_home_of_int4_without_feedback_is_an_eighth(files):
    codec = codec_named("int4")
    with accelerator() as device:
        there = {n: far(t) for n, t in values(7).items()}
        write_payload(files / "delta", Differences(Model(there), files / "theta"), SHAPES, codec)
    assert sum(device.home) == sum(codec.size_bytes(shape) for shape in SHAPES.values())


def test_a_codec_that_devices_round_differently_works_on_the_host(files):
    codec, inner = codec_named("dct2-64"), values(7)
    _, payload, after, _ = sent(files / "host", files / "theta", inner, codec, None)
    with accelerator() as device:
        there = {n: far(t) for n, t in inner.items()}
        _, payload_far, after_far, _ = sent(files / "far", files / "theta", there, codec, None)
    assert (payload, after) == (payload_far, after_far)
    assert sum(device.home) == sum(4 * t.numel() for t in inner.values())


@pytest.mark.parametrize("name", ["int8", "fp16", "topk-64-b2"])
def test_what_is_not_finite_is_found_on_the_device(files, name):
    inner = values(7)
    inner["big"][1, 264_999] = float("nan")
    with accelerator() as device:
        there = {n: far(t) for n, t in inner.items()}
        deltas = Differences(Model(there), files / "theta")
        with pytest.raises(NotFiniteError, match="tensor big: 1 of 530000 values"):
            write_payload(files / "delta", deltas, SHAPES, codec_named(name))
    assert sum(device.home) < 4 * 12_291 + 4 * 530_000 / 2
    assert not (files / "delta").exists()


def test_a_seed_is_written_from_the_device(files):
    """theta(0), which a replica writes of itself."""
    inner = values(3)
    with accelerator():
        write_theta(files / "seed", {n: far(t) for n, t in inner.items()}.items(), SHAPES)
    with TensorReader(files / "seed") as reader:
        assert all(torch.equal(tensor, inner[name]) for name, tensor in tensors(reader))


def test_a_trainer_gives_a_parameter_where_it_lives_in_memory_of_its_own():
    with accelerator() as device:
        live = far(torch.arange(6.0).to(torch.bfloat16))
        same = far(torch.arange(6.0))
        for parameter in (live, same):
            given = gather(parameter, keep=True)
            assert (given.device, given.dtype) == (DEVICE, torch.float32)
            given.zero_()
            assert parameter.here.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
            assert gather(parameter, keep=False).numel() == 0
    assert device.home == []
