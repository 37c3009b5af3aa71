"""The merge in pieces and threads gives the bits of the formulas; what changed on disk is found."""

import math
import threading

import numpy as np
import pytest
import torch

from pww.central import draft as draft_module
from pww.central import merge_pieces, screening
from pww.central.draft import Draft
from pww.central.generations import Generations, name_of
from pww.central.merge import Changed, Overflow, merge, merge_finite
from pww.central.screening import StagedPayload, inspect, screen
from pww.codec import codec_named
from pww.codec.bf16 import Bf16
from pww.codec.fp32 import Fp32
from pww.config.load import compose
from pww.errors import NotFiniteError, PayloadError
from pww.transport.fingerprint import PIECE, Fingerprint, fingerprint
from pww.transport.payload import write_payload
from pww.transport.tensorfile import TensorReader, state_hash

F = np.float32
LARGE = {"long": (9, PIECE // 2 + 7), "empty": (0, 3), "short": (3,), "one": ()}
"""Over `SMALL_BYTES` in all, a tensor over a few pieces, and odd ends."""
assert 4 * math.prod(LARGE["long"]) > draft_module.SMALL_BYTES


def values(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


class Bench:
    def __init__(self, folder, shapes):
        self.folder, self.shapes, self.staged = folder, shapes, []
        self.generations = Generations(folder / "generations")
        self.theta, self.momentum = values(shapes, 0), values(shapes, 100)
        with self.generations.draft(0, shapes) as draft:
            for name in shapes:
                draft.add(name, theta=self.theta[name], momentum=self.momentum[name])

    def add(self, replica, tensors, *, codec=None, tokens=100, staleness=0, prev=""):
        delta = f"{len(self.staged) + 1:032x}"
        path = self.folder / delta
        info = write_payload(path, tensors.items(), self.shapes, codec or Fp32())
        self.staged.append(
            StagedPayload(delta, prev, replica, path, info, tokens, staleness, False)
        )

    def merge(self, *, known=None, between=lambda: None, **diloco):
        with screen(self.staged, self.shapes, known=known or {}) as screened:
            between()
            result, screened = merge_finite(
                self.generations.open(name_of(0)), screened, number=1,
                generations=self.generations,
                diloco=compose([]).diloco.model_copy(update=diloco),
            )  # fmt: skip
        return result, screened

    def check(self, deltas, weights):
        """Against NumPy, bit for bit: theta, momentum, hash and fingerprint."""
        generation = self.generations.open(name_of(1))
        with TensorReader(generation.theta) as theta, TensorReader(generation.momentum) as momentum:
            for name in self.shapes:
                acc = deltas[0][name].numpy() * F(weights[0])
                for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                    x = delta[name].numpy() * F(weight)
                    acc = acc + x
                m = self.momentum[name].numpy() * F(0.9)
                m = m + acc
                u = m * F(0.9)
                u = acc + u
                u = u * F(0.7)
                assert np.array_equal(theta.get(name).numpy(), self.theta[name].numpy() - u), name
                assert np.array_equal(momentum.get(name).numpy(), m), name
        assert generation.info.state_hash == state_hash(generation.theta)
        assert generation.info.theta.digest == generation.info.state_hash
        assert generation.info.momentum_fingerprint == fingerprint(generation.momentum)


def test_a_large_merge_in_threads_is_numpys_bit_for_bit(tmp_path):
    bench = Bench(tmp_path, LARGE)
    a, b = values(LARGE, 1), values(LARGE, 2)
    bench.add("b/y", b, tokens=300, codec=Bf16())
    bench.add("a/x", a, tokens=100)
    result, _ = bench.merge()
    b16 = {name: t.bfloat16().float() for name, t in b.items()}
    bench.check([a, b16], [0.25, 0.75])
    exact = [
        math.sqrt(sum(float((t.double() ** 2).sum()) for t in delta.values())) for delta in (a, b16)
    ]
    assert result.norms == pytest.approx(exact, rel=3e-6)  # squares are summed in fp32 blocks


@pytest.mark.parametrize("shapes", [LARGE, {"w": (7, 3), "empty": (0,)}])
def test_codecs_of_blocks_are_merged_in_pieces_with_the_same_bits(tmp_path, shapes):
    bench = Bench(tmp_path, shapes)
    a, b = values(shapes, 1), values(shapes, 2)
    codec = codec_named("int8")
    bench.add("a/x", a)
    bench.add("b/y", b, codec=codec)
    bench.merge()
    decoded = {name: codec.decode(codec.encode(x), shapes[name]) for name, x in b.items()}
    assert not torch.equal(decoded["w" if "w" in b else "long"], b["w" if "w" in b else "long"])
    bench.check([a, decoded], [0.5, 0.5])


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_parts_that_no_codec_wrote_are_left_out_by_name(tmp_path, bad):
    shapes = {"fine": (3,), "w": (5,)}
    bench = Bench(tmp_path, shapes)

    class Broken(Fp32):
        name = "int8"

        def layout(self, shape):
            return codec_named("int8").layout(shape)

        def encode(self, tensor, *, seed=0):
            parts = codec_named("int8").encode(tensor, seed=seed)
            if tensor.numel() == 5:
                parts["scales"].fill_(bad)
            return parts

    bench.add("a/x", values(shapes, 1), codec=Broken())
    bench.add("b/y", values(shapes, 2))
    result, screened = bench.merge()
    assert result.merged == (bench.staged[1].delta,)
    assert "tensor w: a scale of" in screened.excluded[0].reason
    assert "is damaged" in screened.excluded[0].reason


def test_a_disk_that_fails_in_a_thread_is_told_and_leaves_nothing(tmp_path, monkeypatch):
    bench = Bench(tmp_path, LARGE)
    bench.add("a/x", values(LARGE, 1))
    monkeypatch.setattr(draft_module.os, "cpu_count", lambda: 3)
    put, calls = draft_module._File.extend, iter(range(100))

    def full(file, *args):
        if file._fingerprint is not None and next(calls) == 2:
            raise OSError(28, "No space left on device")
        put(file, *args)

    monkeypatch.setattr(draft_module._File, "extend", full)
    with pytest.raises(OSError, match="No space left"):
        bench.merge()
    assert [path.name for path in (tmp_path / "generations").iterdir()] == ["round-000000"]


@pytest.mark.parametrize("cores", [1, 2, 3, 9])
def test_any_number_of_threads_gives_the_same_bits(tmp_path, monkeypatch, cores):
    monkeypatch.setattr(draft_module, "FLUSH_BYTES", 1 << 20)
    monkeypatch.setattr(draft_module, "SPARE", 0)
    monkeypatch.setattr(draft_module.os, "cpu_count", lambda: cores)
    bench = Bench(tmp_path, LARGE)
    a, b = values(LARGE, 1), values(LARGE, 2)
    bench.add("a/x", a)
    bench.add("b/y", b)
    bench.merge()
    bench.check([a, b], [0.5, 0.5])


def test_what_cannot_be_flushed_is_told_at_the_end(tmp_path, monkeypatch):
    """The system tells a failed write once: to the flush, and not to the `fsync` that follows."""
    monkeypatch.setattr(draft_module, "FLUSH_BYTES", 1 << 20)
    broken = lambda fd: (_ for _ in ()).throw(OSError(5, "Input/output error"))  # noqa: E731
    bench = Bench(tmp_path, LARGE)
    bench.add("a/x", values(LARGE, 1))
    monkeypatch.setattr("pww.transport.tensorfile.os.fdatasync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        bench.merge()
    assert [path.name for path in (tmp_path / "generations").iterdir()] == ["round-000000"]


def test_pieces_come_in_any_order_and_few_are_in_memory(tmp_path, monkeypatch):
    """Later pieces wait for the first without holding anybody up, until all sets do."""
    monkeypatch.setattr(draft_module.os, "sched_getaffinity", lambda _: range(2))
    draft = Draft(tmp_path, {"w": (8 * PIECE,)})
    sets = [draft.buffers() for _ in range(2 + draft_module.SPARE)]
    for number in (2, 1, 3):
        for buffer in sets[number]:
            buffer.fill_(number)
        draft.put(number, "w", sets[number], PIECE)
    found = []
    waiter = threading.Thread(target=lambda: found.append(draft.buffers()))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive(), "all memory waits for the first piece"
    for buffer in sets[0]:
        buffer.fill_(0)
    draft.put(0, "w", sets[0], PIECE)
    waiter.join(60)
    seen = {one[0].data_ptr() for one in (*found, *(draft.buffers() for _ in range(3)))}
    assert seen == {one[0].data_ptr() for one in sets}, "the same sets again"
    with (tmp_path / "theta.safetensors.part").open("rb") as file:
        file.seek(-4 * 4 * PIECE, 2)
        written = np.frombuffer(file.read(), dtype=F).reshape(4, PIECE)
    assert (written == np.arange(4, dtype=F)[:, None]).all()
    draft.abort()
    assert list(tmp_path.iterdir()) == []


def test_who_waits_for_memory_is_told_that_nothing_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_module.os, "sched_getaffinity", lambda _: range(3))
    draft = Draft(tmp_path, {"w": (8 * PIECE,)})
    assert draft.workers == 3, "the cores that this process may use"
    for _ in range(3 + draft_module.SPARE):
        draft.buffers()
    over = []

    def wait():
        with pytest.raises(draft_module.Over):
            draft.buffers()
        over.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    draft.stop()
    waiter.join(60)
    assert over == [True]
    draft.abort()


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_the_first_tensor_that_is_not_finite_is_told_whoever_is_faster(
    tmp_path, monkeypatch, cores
):
    """A later one is found first; which delta is left out must not depend on that."""
    monkeypatch.setattr(draft_module.os, "cpu_count", lambda: cores)
    shapes = {"first": (PIECE,), "second": (PIECE,), "rest": (6 * PIECE,)}
    bench = Bench(tmp_path, shapes)
    for replica, large in (("a/x", "first"), ("b/y", "second")):
        here = {name: torch.zeros(shape) for name, shape in shapes.items()}
        here[large].fill_(3.4e38)
        bench.add(replica, here)
    found, real = threading.Event(), merge_pieces._Worker.merge

    def late(worker, number, *args):
        if number == 0 and cores > 1:
            assert found.wait(60)
        try:
            real(worker, number, *args)
        finally:
            if number == 1:
                found.set()

    monkeypatch.setattr(merge_pieces._Worker, "merge", late)
    outer = compose([]).diloco.outer.model_copy(update={"lr": 2.0})
    with screen(bench.staged, shapes, known={}) as screened:
        with (
            pytest.raises(Overflow, match="tensor first") as caught,
            bench.generations.draft(1, shapes) as draft,
        ):
            merge(
                bench.generations.open(name_of(0)), screened.usable, out=draft,
                diloco=compose([]).diloco.model_copy(update={"outer": outer}),
            )  # fmt: skip
        assert caught.value.delta == bench.staged[0].delta


def test_parts_that_became_undecodable_on_disk_are_told_as_changed(tmp_path):
    """A scale that no codec writes, after an inspection that was right."""
    shapes = {"w": (5,)}
    bench = Bench(tmp_path, shapes)
    bench.add("a/x", values(shapes, 1), codec=codec_named("int8"))
    bench.add("b/y", values(shapes, 2))

    def rot():
        bytes_ = bytearray(bench.staged[0].path.read_bytes())
        with TensorReader(bench.staged[0].path) as reader:
            entry = reader._entries["w/scales"]
            at = reader._data + entry.start
        bytes_[at : at + entry.size_bytes] = b"\xff" * entry.size_bytes
        bench.staged[0].path.write_bytes(bytes_)

    result, screened = bench.merge(between=rot)
    assert result.merged == (bench.staged[1].delta,)
    assert "changed on the central's disk" in screened.excluded[0].reason


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("at", [-1, -2_000_000])
def test_a_bit_that_flips_after_receipt_is_found_by_name(tmp_path, at):
    bench = Bench(tmp_path, LARGE)
    a, b = values(LARGE, 1), values(LARGE, 2)
    bench.add("a/x", a)
    bench.add("b/y", b)
    known = {one.delta: inspect(one.path, one.info, LARGE, hashed=False) for one in bench.staged}
    flip(bench.staged[0].path, at)
    result, screened = bench.merge(known=known)
    assert result.merged == (bench.staged[1].delta,)
    (excluded,) = screened.excluded
    assert excluded.replica == "a/x"
    assert "changed on the central's disk after it was received" in excluded.reason
    bench.check([b], [1.0])


def test_a_nan_that_the_disk_made_is_not_blamed_on_the_largest(tmp_path):
    shapes = {"w": (4,)}
    bench = Bench(tmp_path, shapes)
    bench.add("a/x", {"w": torch.full((4,), 1e-3)})
    bench.add("b/y", {"w": torch.full((4,), 9.0)})

    def rot():
        data = bytearray(bench.staged[0].path.read_bytes())
        data[-4:] = b"\xff\xff\xff\x7f"
        bench.staged[0].path.write_bytes(data)

    result, screened = bench.merge(between=rot)
    assert result.merged == (bench.staged[1].delta,)
    assert [one.replica for one in screened.excluded] == ["a/x"]
    assert "changed on the central's disk" in screened.excluded[0].reason


def test_what_was_encoded_on_a_changed_delta_is_left_out_too(tmp_path):
    bench = Bench(tmp_path, {"w": (4,)})
    bench.add("a/x", {"w": torch.ones(4)})
    bench.add("a/x", {"w": torch.ones(4)}, prev=bench.staged[0].delta)
    result, screened = bench.merge(between=lambda: flip(bench.staged[0].path))
    assert result is None
    assert [one.delta for one in screened.excluded] == [one.delta for one in bench.staged]
    assert "encoded on delta" in screened.excluded[1].reason


def test_inspection_names_the_tensor_and_counts(tmp_path):
    shapes = {"fine": (3,), "last": (2, 2)}
    bench = Bench(tmp_path, shapes)

    class Blind(Fp32):
        def encode(self, tensor, *, seed=0):
            return {"values": tensor}

    broken = {"fine": torch.ones(3), "last": torch.tensor([[1.0, math.nan], [math.inf, 1.0]])}
    bench.add("a/x", broken, codec=Blind())
    one = bench.staged[0]
    with pytest.raises(PayloadError, match=r"tensor last: 2 of 4 values are nan or inf"):
        inspect(one.path, one.info, shapes)
    with pytest.raises(PayloadError, match=r"tensor fine has shape \(3,\) in the delta and none"):
        inspect(one.path, one.info, {"last": (2, 2)})
    checked = screening.Checked("f", {"a": 9.0, "b": 16.0})
    assert checked.norm == 5.0


def test_a_tensor_that_changes_while_it_is_inspected(tmp_path, monkeypatch):
    bench = Bench(tmp_path, {"w": (3,)})
    bench.add("a/x", {"w": torch.ones(3)})
    monkeypatch.setattr(screening, "square_sum", lambda _: math.nan)
    with pytest.raises(PayloadError, match="its squares are not finite; it was changed while read"):
        inspect(bench.staged[0].path, bench.staged[0].info, {"w": (3,)})


def test_causes_travel_between_processes():
    for fault in (Changed("a" * 32), Overflow("w", "b" * 32)):
        kind, args = fault.__reduce__()
        again = kind(*args)
        assert (str(again), again.delta) == (str(fault), fault.delta)
    assert isinstance(Overflow("w", "b"), NotFiniteError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_fingerprint_sees_every_bit_and_the_order(dtype):
    def of(*pieces):
        seen = Fingerprint()
        for piece in pieces:
            seen.add(piece)
        return seen.hexdigest()

    data = torch.randint(0, 256, (1002,), generator=torch.Generator().manual_seed(1)).byte()
    one = data[:1000].view(dtype) if dtype is not torch.uint8 else data
    assert of(one) == of(one.clone())
    seen = {of(one)}
    for at in (0, 1, 499, 999):
        other = data.clone()
        other[at] ^= 0x10
        seen.add(of(other[:1000].view(dtype) if dtype is not torch.uint8 else other))
    assert len(seen) == 5
    assert of(one[:100], one[100:200]) != of(one[100:200], one[:100])


def test_a_fingerprint_of_a_file_is_of_fp32(tmp_path):
    from pww.transport.tensorfile import TensorWriter

    with TensorWriter(tmp_path / "x", {"w": (torch.float64, (2,))}, {}) as writer:
        writer.add("w", torch.zeros(2, dtype=torch.float64))
    with pytest.raises(PayloadError, match=r"tensor w is torch.float64, expected was"):
        fingerprint(tmp_path / "x")
