"""The outbox on a real disk: whole or absent at every write, what resume finds, what a delta is."""

import json
import os
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from births import Nursery

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from full_device import WORDS, FullDevice
from lone_replica import (
    LEASES,
    PLAN,
    SHAPES,
    TOKENS,
    Never,
    NoSteps,
    Pull,
    Sharded,
    put_one,
)

from pww.codec import codec_named
from pww.errors import CheckpointError, NotFiniteError, PayloadError
from pww.log import read_json_lines
from pww.replica.outbox import NOTHING, Outbox
from pww.trainer.api import EvalResult
from pww.transport.payload import PayloadReader
from pww.transport.tensorfile import TensorReader
from pww.wire import Verdict

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "programs"


@pytest.fixture
def open_outbox(run, ranks):
    opened: list[Outbox] = []

    def make(*, keep: int = 2, codec: str = "fp32", at: Path = run) -> Outbox:
        opened.append(Outbox(at, ranks=ranks, codec=codec_named(codec), keep=keep))
        return opened[-1]

    yield make
    for outbox in opened:
        outbox.close()


def merged(entry, round_: int = 1) -> Verdict:
    return Verdict(delta=entry.offer.delta, outcome="merged", round=round_)


def rejected(entry, reason: str = "late") -> Verdict:
    return Verdict(delta=entry.offer.delta, outcome="rejected", round=0, reason=reason)


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))


def put(outbox, trainer, theta, lease=LEASES[0], **more):
    trainer.load(theta.path)
    result = trainer.run(
        PLAN.windows(lease), progress=0.0, progress_end=0.1, on_step=NoSteps(), stop=Never()
    )
    told = {"run": "a" * 32, "partial": False, "held_out": None} | more
    return outbox.put(trainer, theta, result, lease, **told), result


# ------------------------------------------------------------------------------ what is in it


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_the_delta_is_theta_outer_minus_theta_inner_exactly(open_outbox, theta, codec) -> None:
    trainer = Pull()
    entry, _ = put(open_outbox(codec=codec), trainer, theta)
    square = size = 0.0
    reader = PayloadReader(entry.payload, entry.offer.payload)
    with reader as payload, TensorReader(theta.path) as outer:
        assert list(payload.shapes) == list(SHAPES)
        for name in SHAPES:
            expected = outer.get(name) - trainer.theta[name]
            square += float(expected.double().square().sum())
            size += float(outer.get(name).double().square().sum())
            if codec == "bf16":
                expected = expected.bfloat16().float()
            assert torch.equal(payload.tensor(name), expected)
        assert payload.tensor("weight").abs().min() > 0
    assert entry.offer.metrics.delta_norm == pytest.approx(square**0.5, rel=1e-12)
    assert entry.offer.metrics.drift == pytest.approx((square / size) ** 0.5, rel=1e-12)


def test_a_codec_that_draws_draws_anew_in_every_phase(open_outbox, theta) -> None:
    outbox, keys = open_outbox(codec="randomk-1"), []
    for lease in LEASES[:2]:
        entry, _ = put(outbox, Pull(), theta, lease)
        with TensorReader(entry.payload) as payload:
            keys += [int(key) for name in SHAPES for key in payload.get(f"{name}/keys")]
        outbox.settle(merged(entry))
    assert len(set(keys)) == len(keys) == 4, "of two tensors that are not empty, in two phases"


def test_the_offer_tells_what_was_measured(open_outbox, theta, run) -> None:
    held_out = EvalResult(loss=3.25, tokens=77)
    entry, result = put(open_outbox(), Pull(), theta, held_out=held_out, partial=True)
    offer, told = entry.offer, entry.offer.metrics
    assert (offer.run, offer.replica, offer.base_round) == ("a" * 32, "local/a", 0)
    assert [(s.lease, s.span) for s in offer.spans] == [(0, LEASES[0].span)]
    assert (offer.tokens, offer.partial, offer.finite, offer.prev) == (8 * TOKENS, True, True, "")
    assert (told.steps, told.tokens, told.loss) == (2, 8 * TOKENS, 2.5)
    assert (told.phase_seconds, told.tokens_per_s) == (2.0, 4.0 * TOKENS)
    assert (told.held_out_loss, told.held_out_tokens) == (3.25, 77)
    assert (entry.step, entry.tokens_total, entry.verdict) == (2, 8 * TOKENS, None)
    assert entry.payload.stat().st_size == offer.payload.size_bytes
    assert (entry.inner / "step").read_text() == "2"
    (row,) = read_json_lines(run / "draws.jsonl")
    assert row == {"delta": offer.delta, "lease": 0, "windows": list(result.drawn)}
    assert sorted(row["windows"]) == sorted(PLAN.windows(LEASES[0]))


def test_what_was_not_evaluated_is_said_so(open_outbox, theta) -> None:
    for held_out in (None, EvalResult(loss=float("nan"), tokens=5)):
        entry, _ = put(open_outbox(), Pull(), theta, held_out=held_out)
        assert entry.offer.metrics.held_out_loss == -1.0
        assert entry.offer.metrics.held_out_tokens == 0
        assert type(entry.offer).model_validate_json(entry.offer.model_dump_json()) == entry.offer


def test_a_phase_that_took_no_time_has_a_rate_that_can_be_sent(open_outbox, theta) -> None:
    trainer = Pull()
    trainer.clock.advance = lambda seconds: None  # a clock too coarse for a phase this short
    entry, _ = put(open_outbox(), trainer, theta)
    assert entry.offer.metrics.phase_seconds == 0.0
    assert entry.offer.metrics.tokens_per_s > 0


def test_a_nan_sends_nothing_and_names_the_tensor(open_outbox, theta, run, caplog) -> None:
    entry, _ = put(open_outbox(), Pull(nan_in=(1,)), theta)
    assert (entry.offer.finite, entry.offer.payload) == (False, NOTHING)
    assert sorted(p.name for p in entry.folder.iterdir()) == ["entry.json", "inner"]
    assert "phase-000000" in caplog.text
    assert "tensor weight" in caplog.text
    assert names(run) == ["phase-000000"]
    # the blocks of the phase are the same promise as any other's
    assert read_json_lines(run / "draws.jsonl")[0]["delta"] == entry.offer.delta


@pytest.mark.parametrize("loss", ["inf", "nan", "1e+31", "-1e+31"])
def test_a_loss_beyond_reason_makes_the_delta_unusable_too(
    open_outbox, theta, caplog, loss
) -> None:
    class Lost(Pull):
        def run(self, *args, **told):
            return replace(super().run(*args, **told), loss=float(loss))

    held_out = EvalResult(loss=float(loss), tokens=5)
    entry, _ = put(open_outbox(), Lost(), theta, held_out=held_out)
    assert (entry.offer.finite, entry.offer.payload) == (False, NOTHING)
    assert entry.offer.metrics.held_out_loss == -1.0
    assert not entry.payload.exists()
    assert f"its loss is {loss}, beyond 1e+30" in caplog.text


def test_a_delta_whose_norm_no_message_can_tell_is_unusable(open_outbox, theta, caplog) -> None:
    class Far(Pull):
        def run(self, *args, **told):
            result = super().run(*args, **told)
            self.theta["bias"] = torch.tensor(1e38)
            return result

    entry, _ = put(open_outbox(), Far(), theta)
    assert (entry.offer.finite, entry.offer.payload) == (False, NOTHING)
    assert not entry.payload.exists()
    assert "its norm is 1e+38, beyond 1e+30" in caplog.text


def test_a_damaged_theta_ends_the_run_and_is_no_nan_of_this_site(
    open_outbox, theta, run, caplog
) -> None:
    outbox = open_outbox()
    entry, _ = put(outbox, Pull(), theta)
    trainer, whole = Pull(), theta.path.read_bytes()
    for damage, text in ((whole[:-1], "theta"), (whole[:4], "cannot hold a header")):

        class Torn(Pull):
            def run(self, *args, damage=damage, **told):
                theta.path.write_bytes(damage)
                return super().run(*args, **told)

        theta.path.write_bytes(whole)
        trainer = Torn()
        with pytest.raises(PayloadError, match=text) as caught:
            put(outbox, trainer, theta, LEASES[1])
        assert not isinstance(caught.value, NotFiniteError)
        assert trainer.gathered == len(SHAPES), "the other ranks gather them all"
        assert (names(run), outbox.last) == (["phase-000000"], entry)
    assert "will not be sent" not in caplog.text


# ---------------------------------------------------------------------- pending, merged, prev


def test_pending_merged_and_prev_follow_the_verdicts(open_outbox, theta) -> None:
    outbox, trainer = open_outbox(), Pull()
    assert (outbox.last, outbox.pending, outbox.merged) == (None, None, "")
    first, _ = put(outbox, trainer, theta)
    assert (outbox.pending, outbox.merged) == (first, "")
    outbox.settle(merged(first))
    assert (outbox.pending, outbox.merged) == (None, first.offer.delta)
    second, _ = put(outbox, trainer, theta, LEASES[1])
    assert second.offer.prev == outbox.merged == first.offer.delta
    outbox.settle(rejected(second))
    assert (outbox.pending, outbox.merged) == (None, first.offer.delta)
    third, _ = put(outbox, trainer, theta, LEASES[2])
    assert third.offer.prev == first.offer.delta
    assert third.tokens_total == 3 * 8 * TOKENS
    assert len({e.offer.delta for e in (first, second, third)}) == 3


def test_what_only_an_old_folder_says_is_forgotten_at_the_start(open_outbox, theta) -> None:
    outbox, trainer = open_outbox(), Pull(nan_in=(2,))
    first, _ = put(outbox, trainer, theta)
    outbox.settle(merged(first))
    again = open_outbox()  # as of a folder whose newest phases were lost
    again.rejoin("b" * 32)
    broken, _ = put(again, trainer, theta, LEASES[1])
    assert broken.offer.prev == ""
    again.settle(rejected(broken, "nan"))
    trainer.reset_inner()
    refused, _ = put(again, trainer, theta, LEASES[1])
    again.settle(rejected(refused))
    assert again.merged == "", "a rejection changes nothing"
    taken, _ = put(again, trainer, theta, LEASES[1])
    assert taken.offer.prev == ""
    again.settle(merged(taken))
    after, _ = put(again, trainer, theta, LEASES[2])
    assert after.offer.prev == taken.offer.delta
    again.settle(rejected(after))
    assert again.merged == taken.offer.delta, "this process knows the order by itself"


def test_a_rejection_makes_nothing_forgotten_where_the_central_agrees(open_outbox, theta) -> None:
    outbox, trainer = open_outbox(), Pull()
    outbox.rejoin("")
    first, _ = put(outbox, trainer, theta)
    outbox.settle(merged(first))
    again = open_outbox()
    again.rejoin(first.offer.delta)
    for _ in range(3):
        late, _ = put(again, trainer, theta, LEASES[1])
        assert late.offer.prev == first.offer.delta
        again.settle(rejected(late))
    assert again.merged == first.offer.delta


def test_a_central_that_merged_nothing_of_it_is_no_central_of_this_folder(
    open_outbox, theta
) -> None:
    outbox = open_outbox()
    first, _ = put(outbox, Pull(), theta)
    outbox.settle(merged(first))
    again = open_outbox()
    again.rejoin("")
    assert again.merged == ""


def test_a_delta_that_others_followed_is_no_start_whatever_its_verdict(open_outbox, theta) -> None:
    """The folder was copied while a delta was pending; it was merged, and so were later ones."""
    outbox, trainer = open_outbox(), Pull()
    old, _ = put(outbox, trainer, theta)
    again = open_outbox()
    again.rejoin("b" * 32)
    again.settle(merged(old))
    assert again.merged == "", "its successor is the last one, and unknown here"
    taken, _ = put(again, trainer, theta, LEASES[1])
    assert taken.offer.prev == ""
    again.settle(merged(taken))
    assert again.merged == taken.offer.delta


def test_a_pending_delta_that_the_central_merged_is_its_last_one(open_outbox, theta) -> None:
    outbox = open_outbox()
    sent, _ = put(outbox, Pull(), theta)
    again = open_outbox()
    again.rejoin(sent.offer.delta)
    again.settle(merged(sent))
    assert again.merged == sent.offer.delta


def test_settling_drops_the_payload_and_keeps_the_rest(open_outbox, theta) -> None:
    outbox = open_outbox()
    entry, _ = put(outbox, Pull(), theta)
    outbox.settle(merged(entry))
    assert sorted(p.name for p in entry.folder.iterdir()) == ["entry.json", "inner"]


def test_resume_finds_the_newest_and_its_verdict(open_outbox, theta) -> None:
    outbox, trainer = open_outbox(), Pull()
    first, _ = put(outbox, trainer, theta)
    outbox.settle(merged(first))
    again = open_outbox()
    assert again.last == outbox.last
    assert (again.pending, again.merged) == (None, first.offer.delta)
    second, _ = put(again, trainer, theta, LEASES[1])
    assert open_outbox().pending == second
    assert second.step == 4


def test_only_the_newest_are_kept(open_outbox, theta, run) -> None:
    outbox, trainer = open_outbox(keep=3), Pull()
    for number in range(5):
        entry, _ = put(outbox, trainer, theta, LEASES[number % 3])
        outbox.settle(merged(entry, number + 1))
        assert names(run) == [f"phase-{n:06d}" for n in range(max(0, number - 2), number + 1)]
    deltas = [row["delta"] for row in read_json_lines(run / "draws.jsonl")]
    assert len(set(deltas)) == 5, "the draw log is complete whatever is kept"


# -------------------------------------------------------------------------------- damage


def test_an_entry_that_cannot_be_read_is_named(open_outbox, theta, run) -> None:
    entry, _ = put(open_outbox(), Pull(), theta)
    file = entry.folder / "entry.json"
    good = json.loads(file.read_text())
    rows = [[], {}, good | {"verdict": {}}, good | {"step": None}, good | {"offer": 1}]
    rows.append({key: value for key, value in good.items() if key != "tokens_total"})
    for bad in (b"", b"{", b"\xff", *(json.dumps(row).encode() for row in rows)):
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=f"{entry.folder} cannot be read .* remove it"):
            open_outbox()
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_outbox()


def test_a_part_is_swept(open_outbox, theta, run) -> None:
    entry, _ = put(open_outbox(), Pull(), theta)
    part = run / "checkpoints" / "phase-000001.part"
    (part / "inner").mkdir(parents=True)
    (part / "entry.json").write_text("{}")
    assert open_outbox().last == entry
    assert names(run) == ["phase-000000"]


def test_an_inner_state_that_cannot_be_saved_leaves_no_part(open_outbox, theta, run) -> None:
    class Broken(Pull):
        def save_inner(self, folder: Path) -> None:
            folder.mkdir()
            raise CheckpointError("the disk said no")

    outbox = open_outbox()
    entry, _ = put(outbox, Pull(), theta)
    with pytest.raises(
        CheckpointError, match=r"cannot write .*phase-000001: the disk said no\. .*"
    ):
        put(outbox, Broken(), theta, LEASES[1])
    assert names(run) == ["phase-000000"]
    assert outbox.last == entry


# ------------------------------------------------------------------- crashes and full disks


@pytest.fixture
def points(nursery: Nursery, tmp_path: Path) -> Callable[..., dict[int, int]]:
    """Runs the program; its exit code at each point."""
    return partial(codes_of, nursery, tmp_path)


def codes_of(nursery: Nursery, folder: Path, how: str, *more: str) -> dict[int, int]:
    done = nursery.run(str(PROGRAMS / "lone_replica.py"), str(folder), how, *more, folder=folder)
    assert done.returncode == 0, done.stderr
    return {int(a): int(b) for a, b in (line.split() for line in done.stdout.splitlines())}


def load_plain(folder: Path) -> int:
    """Reads an inner state whole; its step."""
    trainer = Pull()
    trainer.load_inner(folder)
    return trainer.step


def sharded(ranks):
    """Reads an inner state of torch's whole; its step."""

    def load(folder: Path) -> int:
        trainer = Sharded(ranks)
        trainer.load_inner(folder)
        assert any(bool(value.any()) for value in trainer.momentum.values()), "all of it"
        return trainer.step

    return load


def check_whole_or_absent(run: Path, open_outbox, said: list[list[str]], load=load_plain) -> None:
    """Folders are whole, the newest is what was promised or newer, and its draws are on record."""
    outbox = open_outbox(at=run)
    drawn = {row["delta"]: row["windows"] for row in read_json_lines(run / "draws.jsonl")}
    folders = sorted((run / "checkpoints").iterdir())
    assert all(len(folder.name) == len("phase-000000") for folder in folders), "a part is left"
    ids = []
    for folder in folders:
        row = json.loads((folder / "entry.json").read_text())
        delta, verdict = row["offer"]["delta"], row["verdict"]
        ids.append(delta)
        lease = LEASES[int(folder.name[-1])]
        assert sorted(drawn[delta]) == sorted(PLAN.windows(lease))
        assert load(folder / "inner") == 2 * (int(folder.name[-1]) + 1)
        if verdict is None:
            info = json.dumps(row["offer"]["payload"])
            with PayloadReader(
                folder / "delta.safetensors", NOTHING.model_validate_json(info)
            ) as payload:
                assert list(payload.shapes) == list(SHAPES)
    put_ids = [delta for verb, delta in said if verb == "put"]
    settled = [delta for verb, delta in said if verb == "settled"]
    if put_ids:
        assert ids[ids.index(put_ids[-1]) :][1:] in ([], ids[-1:]), "at most one newer"
        assert ids[-2:-1] in ([], put_ids[-1:], put_ids[-2:-1]), "the one before it is intact"
    if outbox.last is None:
        assert not put_ids
        return
    if settled and ids[-1] == settled[-1]:
        assert outbox.last.verdict is not None
        assert outbox.merged == settled[-1]
    if put_ids[len(settled) :] and ids[-1] == put_ids[-1]:
        verdict = outbox.last.verdict
        assert verdict is None or verdict.delta == put_ids[-1]


def said_at(folder: Path, number: int) -> list[list[str]]:
    lines = (folder / f"{number:03d}.said").read_text().splitlines()
    return [line.split(" ", 1) for line in lines]


@pytest.mark.parametrize("inner", ["plain", "distcp", "beside"])
def test_a_death_at_any_write_leaves_phases_whole_or_absent(
    tmp_path, open_outbox, theta, ranks, points, inner
) -> None:
    codes = points("die", "fp32", inner)
    assert len(codes) > (40 if inner == "plain" else 60)
    assert set(codes.values()) == {9, 0}
    for number in codes:
        run = tmp_path / f"{number:03d}"
        load = load_plain if inner == "plain" else sharded(ranks)
        check_whole_or_absent(run, open_outbox, said_at(tmp_path, number), load)
        outbox = open_outbox(at=run)
        before = names(run)
        if outbox.pending is not None:
            outbox.settle(merged(outbox.pending, 9))
        entry = put_one(outbox, Pull(), theta, LEASES[0])  # and it goes on from there
        assert names(run) == [*before[-1:], entry.folder.name]


@pytest.mark.parametrize("inner", ["plain", "beside"])
def test_a_full_disk_at_any_write_is_told_and_what_was_before_is_intact(
    tmp_path, open_outbox, ranks, points, inner
) -> None:
    codes = points("full", "fp32", inner)
    assert len(codes) > 40
    assert set(codes.values()) == {3, 0}
    for number, code in codes.items():
        run, said = tmp_path / f"{number:03d}", said_at(tmp_path, number)
        if code:
            ((_, fault),) = [line for line in said if line[0] == "fault"]
            assert "cannot write" in fault
            assert "No space left on device" in fault
            assert f"resume={run}" in fault
            left = [name for name in names(run) if name.endswith(".part")]
            assert not left
            said.pop()
            assert not list(run.rglob("*.part"))
        load = load_plain if inner == "plain" else sharded(ranks)
        check_whole_or_absent(run, open_outbox, said, load)


def test_files_that_may_not_grow(tmp_path, open_outbox, points) -> None:
    """The kernel cuts a write short before it refuses: no draw and no payload is half there."""
    codes = points("short")
    assert len(codes) > 5
    assert set(codes.values()) == {3, 0}
    for number, code in codes.items():
        run, said = tmp_path / f"{number:03d}", said_at(tmp_path, number)
        if code:
            verb, fault = said.pop()
            assert verb == "fault"
            assert "File too large" in fault
            assert f"resume={run}" in fault
            assert not list(run.rglob("*.part"))
        check_whole_or_absent(run, open_outbox, said)


def test_every_tensor_is_gathered_whatever_rank_0_found(open_outbox, theta, run) -> None:
    """Other ranks take part in each gather: a rank 0 that stopped early would let them wait."""
    outbox, trainer = open_outbox(), Pull(nan_in=(1,))
    put(outbox, trainer, theta)
    assert trainer.gathered == len(SHAPES)
    (run / "checkpoints" / "phase-000001.part").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot write"):
        put(outbox, trainer, theta, LEASES[1])
    assert trainer.gathered == 2 * len(SHAPES)


class Watching(Pull):
    """Tells at each gather whether the tensor that it gave before is still in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[bool] = []

    def tensors(self):
        last = None
        for name, value in super().tensors():
            self.held.append(last is not None and last() is not None)
            last = weakref.ref(value)
            yield name, value
            del value


@pytest.mark.parametrize(
    ("codec", "call", "room"),
    [("fp32", "empty_like", 0), ("int8", "empty", 2), ("topk-64-b2", "empty", 2)],
)
def test_a_device_without_room_to_encode_is_told_and_nobody_is_left_waiting(
    open_outbox, theta, run, codec, call, room
) -> None:
    """The first difference, or a part of it: both are gone before the gathers that follow."""
    outbox, trainer = open_outbox(codec=codec), Watching()
    put(outbox, trainer, theta)
    trainer.held.clear()
    told = (
        r"cannot encode .*phase-000001: the device is out of memory \(CUDA out of memory\. Tried "
        r"to allocate 2\.00 GiB\)\. The checkpoints before it are intact, .*: make room for the "
        rf"largest tensor of the model, .* resume={re.escape(str(run))}$"
    )
    with FullDevice(call, room=room), pytest.raises(CheckpointError, match=told):
        put(outbox, trainer, theta, LEASES[1])
    assert trainer.gathered == 2 * len(SHAPES)
    assert trainer.held == [False] * len(SHAPES)
    assert names(run) == ["phase-000000"]
    entry, _ = put(outbox, trainer, theta, LEASES[1])
    assert entry.offer.finite


class NoRoomToGather(Pull):
    """The second tensor finds none."""

    def tensors(self):
        for name, value in super().tensors():
            if name == "empty":
                raise torch.OutOfMemoryError(WORDS)
            yield name, value


def test_a_rank_without_room_for_a_gather_agrees_on_nothing(open_outbox, theta, run) -> None:
    """The others are in that gather: they would never hear it."""
    outbox = open_outbox()
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory"):
        put(outbox, NoRoomToGather(), theta)
    outbox.close()
    assert open_outbox().last is None
    assert names(run) == []
