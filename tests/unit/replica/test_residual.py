"""Error feedback: sums against closed forms, and which residual is in force after what."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import LEASES, SHAPES, Lone, Pull, open_outbox, put_one, theta_in

from pww.central.audit import audit
from pww.codec import codec_named
from pww.codec.bf16 import Bf16
from pww.errors import CheckpointError, PayloadError
from pww.log import read_json_lines
from pww.replica.outbox import NOTHING, Entry, Outbox
from pww.replica.residual import Feedback
from pww.transport.payload import PayloadReader, write_payload, write_theta
from pww.transport.tensorfile import TensorReader, tensors
from pww.wire import Verdict

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "programs" / "lone_replica.py"
State = dict[str, torch.Tensor]


@pytest.fixture
def opened(run, ranks):
    made: list[Outbox] = []

    def open_(*, codec: str = "bf16", at: Path = run) -> Outbox:
        made.append(open_outbox(at, ranks, codec=codec))
        return made[-1]

    yield open_
    for outbox in made:
        outbox.close()


def settle(outbox: Outbox, outcome: str) -> None:
    assert outbox.last is not None
    outbox.settle(Verdict(delta=outbox.last.offer.delta, outcome=outcome, round=1))


def in_file(path: Path) -> State:
    with TensorReader(path) as reader:
        return dict(tensors(reader))


def in_force(outbox: Outbox) -> State:
    """The residual that the next delta will bring along."""
    if outbox.residual is None:
        return {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    return in_file(outbox.residual.residual)


def sent(entry: Entry) -> State:
    """What the central decodes."""
    with PayloadReader(entry.payload, entry.offer.payload) as payload:
        return {name: payload.tensor(name) for name in SHAPES}


def delta_of(theta, trainer) -> State:
    outer = in_file(theta.path)
    return {name: outer[name] - trainer.theta[name] for name in SHAPES}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def norm(state: State) -> float:
    return sum(float(t.double().square().sum()) for t in state.values()) ** 0.5


# ------------------------------------------------------------------------------------- the laws


class Moves(Pull):
    """A trainer that moves by what it is told to, from a theta of zeros."""

    move: State

    def run(self, *args, **told):
        result = super().run(*args, **told)
        self.theta = {name: -value for name, value in self.move.items()}
        return result


def test_what_was_sent_and_the_last_residual_are_the_sum_of_the_merged_deltas(
    opened, theta
) -> None:
    """200 phases, verdicts and restarts by chance; what was rejected is not part of the sum."""
    write_theta(theta.path, ((n, torch.zeros(s)) for n, s in SHAPES.items()), SHAPES)
    random = np.random.default_rng(7)
    outbox, trainer = opened(), Moves()
    summed = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    arrived = {name: value.clone() for name, value in summed.items()}
    room = {name: value.clone() for name, value in summed.items()}
    last, restarts, rejections = "", 0, 0
    for phase in range(200):
        trainer.move = {
            name: torch.tensor(random.normal(size=shape) * 10.0 ** -(phase % 4)).float()
            for name, shape in SHAPES.items()
        }
        entry = put_one(outbox, trainer, theta, LEASES[0])
        payload = sent(entry)
        if random.random() < 0.1:
            outbox, restarts = opened(), restarts + 1
            outbox.rejoin(last)
        if random.random() < 0.3:
            settle(outbox, "rejected")
            rejections += 1
            continue
        settle(outbox, "merged")
        last = entry.offer.delta
        for name, value in trainer.move.items():
            summed[name] += value
            arrived[name] += payload[name]
            room[name] += 2.0**-23 * payload[name].abs()  # the rounding of one sum in fp32
    assert min(restarts, rejections) > 10
    left = in_force(outbox)
    assert norm(left) > 0
    for name in SHAPES:
        assert ((arrived[name] + left[name] - summed[name]).abs() <= room[name]).all()


def phases(folder: Path, move: torch.Tensor, number: int, *, feedback: bool):
    """`number` deltas of `move` through bf16, all merged: what arrived (fp64), the residual."""
    shapes, codec = {"w": tuple(move.shape)}, codec_named("bf16")
    arrived = torch.zeros(move.shape, dtype=torch.float64)
    files = [folder / "even", folder / "odd"]
    before = None
    for phase in range(number):
        after = files[phase % 2] if feedback else None
        with Feedback(shapes, before=before, after=after) as way:
            info = write_payload(
                folder / "delta", way.carried([("w", move.clone())]), shapes, codec,
                lost=way.keep if feedback else None,
            )  # fmt: skip
        with PayloadReader(folder / "delta", info) as payload:
            arrived += payload.tensor("w")
        before = after
    left = torch.zeros_like(move) if before is None else in_file(before)["w"]
    return arrived, left


@pytest.fixture
def no_sync(monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # thousands of them, and no crash


def test_a_thousand_small_deltas_add_up(tmp_path, no_sync) -> None:
    move = torch.tensor([1e-3 * 2.0**-9])
    arrived, left = phases(tmp_path, move, 1000, feedback=True)
    total = 1000 * float(move)
    assert abs(float(arrived + left) - total) <= 1000 * float(move) * 2.0**-23
    assert abs(float(arrived) - total) <= 2.0**-7 * float(move)
    without, _ = phases(tmp_path, move, 1000, feedback=False)
    lost = abs(float(move) - float(move.bfloat16()))
    assert lost > 0
    assert abs(float(without) - total) == pytest.approx(1000 * lost, rel=1e-9)


def test_with_feedback_the_error_stays_bounded_and_without_it_grows(tmp_path, no_sync) -> None:
    move = torch.linspace(0.1, 1.0, 64)
    bound = codec_named("bf16").bound(2 * move).double()
    errors = {}
    for number in (50, 200):
        for feedback in (True, False):
            arrived, _ = phases(tmp_path, move, number, feedback=feedback)
            errors[number, feedback] = (arrived - number * move.double()).abs()
    assert (errors[50, True] <= bound).all()
    assert (errors[200, True] <= bound).all()
    assert torch.allclose(errors[200, False], 4 * errors[50, False], rtol=1e-9)
    assert errors[200, False].max() > 20 * errors[200, True].max()


# -------------------------------------------------------------------- before a delta is sent


def test_the_next_residual_is_durable_beside_the_payload(opened, theta) -> None:
    outbox, trainer = opened(), Pull()
    first = put_one(outbox, trainer, theta, LEASES[0])
    delta, payload = delta_of(theta, trainer), sent(first)
    left = {name: delta[name] - payload[name] for name in SHAPES}
    assert same(in_file(first.residual), left)
    assert same(in_force(outbox), {name: torch.zeros(s) for name, s in SHAPES.items()}), "not yet"
    assert first.offer.metrics.residual_norm == pytest.approx(norm(left), rel=1e-12)
    assert first.offer.metrics.delta_norm == pytest.approx(norm(delta), rel=1e-12)
    settle(outbox, "merged")
    second = put_one(outbox, trainer, theta, LEASES[1])
    carried = {name: value + left[name] for name, value in delta_of(theta, trainer).items()}
    assert same(sent(second), {name: value.bfloat16().float() for name, value in carried.items()})
    assert same(in_file(second.residual), {n: carried[n] - sent(second)[n] for n in SHAPES}), (
        "of the sum, not of the delta"
    )
    assert same(in_force(outbox), left)


def test_a_delta_that_cannot_be_made_durable_leaves_the_residual(opened, theta, run) -> None:
    class Broken(Pull):
        def save_inner(self, folder: Path) -> None:
            raise CheckpointError("the disk said no")

    outbox = opened()
    put_one(outbox, Pull(), theta, LEASES[0])
    settle(outbox, "merged")
    before = in_force(outbox)
    with pytest.raises(CheckpointError, match="the disk said no"):
        put_one(outbox, Broken(), theta, LEASES[1])
    assert same(in_force(outbox), before)
    assert same(in_force(opened()), before)


@pytest.mark.parametrize("how", ["die", "full"])
def test_whatever_write_is_the_last_one_the_right_residual_is_in_force(
    tmp_path, opened, how, theta, nursery
) -> None:
    done = nursery.run(str(PROGRAM), str(tmp_path), how, "bf16", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(numbers) > 45
    # the same phases without an accident: payload and residual of each, by its place in the run
    trainer, outbox, right = Pull(), opened(at=tmp_path / "whole"), []
    place = theta_in(tmp_path / "whole-theta")
    for lease in LEASES:
        entry = put_one(outbox, trainer, place, lease)
        right.append((sent(entry), in_file(entry.residual)))
        settle(outbox, "merged")
    seen = set()
    for number in numbers:
        run = tmp_path / f"{int(number):03d}"
        lines = (run.parent / f"{run.name}.said").read_text().splitlines()
        promised = [line.split(" ")[1] for line in lines if line.startswith("settled")]
        outbox = opened(at=run)
        assert outbox.last is not None
        phase = int(outbox.last.folder.name[-1])
        state = "pending" if outbox.pending is not None else "merged"
        seen.add((phase, state))
        if state == "pending":
            assert same(sent(outbox.last), right[phase][0])
            assert same(in_file(outbox.last.residual), right[phase][1])
        newest = phase - (state == "pending")
        assert outbox.residual is not None
        assert outbox.residual.offer.delta == outbox.merged
        assert same(in_force(outbox), right[newest][1])
        assert newest >= len(promised) - 1
    assert {(0, "merged"), (1, "pending"), (1, "merged"), (2, "pending")} <= seen


# -------------------------------------------------------------------------------- the verdict


def test_a_residual_is_in_force_from_the_verdict_merged_on(opened, theta, run) -> None:
    outbox, trainer = opened(), Pull()
    first = put_one(outbox, trainer, theta, LEASES[0])
    assert outbox.residual is None
    settle(outbox, "merged")
    kept = in_force(outbox)
    assert (outbox.residual.offer.delta, opened().residual) == (outbox.merged, outbox.residual)
    second = put_one(outbox, trainer, theta, LEASES[1])
    newer = in_file(second.residual)
    assert same(in_force(opened()), kept), "pending: the one before"
    settle(outbox, "merged")
    assert same(in_force(outbox), newer)
    assert same(in_force(opened()), newer)
    assert not first.residual.exists(), "nobody needs it any more"
    assert not same(kept, newer)


def test_rejections_leave_the_one_before_through_restarts_and_collection(
    opened, theta, run
) -> None:
    outbox, trainer = opened(), Pull()
    put_one(outbox, trainer, theta, LEASES[0])
    settle(outbox, "merged")
    kept, tag = in_force(outbox), outbox.merged
    for restart in (False, True, False, True, True):
        entry = put_one(outbox, trainer, theta, LEASES[1])
        delta = delta_of(theta, trainer)
        expected = {name: (delta[name] + kept[name]).bfloat16().float() for name in SHAPES}
        assert same(sent(entry), expected), "the same residual each time"
        if restart:
            outbox = opened()
            outbox.rejoin(tag)
        settle(outbox, "rejected")
        assert not entry.residual.exists()
        if restart:
            outbox = opened()
            outbox.rejoin(tag)
        assert (outbox.merged, outbox.residual.offer.delta) == (tag, tag)
        assert same(in_force(outbox), kept)
    names = sorted(os.listdir(run / "checkpoints"))
    assert names == ["phase-000000", "phase-000004", "phase-000005"], "the newest two and its own"
    put_one(outbox, trainer, theta, LEASES[1])
    settle(outbox, "merged")
    put_one(outbox, trainer, theta, LEASES[2])
    assert sorted(os.listdir(run / "checkpoints")) == ["phase-000006", "phase-000007"]


def test_a_delta_that_is_not_finite_leaves_the_residual(opened, theta) -> None:
    outbox, trainer = opened(), Pull(nan_in=(2,))
    put_one(outbox, trainer, theta, LEASES[0])
    settle(outbox, "merged")
    kept = in_force(outbox)
    broken = put_one(outbox, trainer, theta, LEASES[1])
    assert (broken.offer.finite, broken.offer.payload) == (False, NOTHING)
    assert broken.offer.metrics.residual_norm == 0.0
    assert not broken.residual.exists()
    settle(outbox, "rejected")
    trainer.reset_inner()
    for box in (outbox, opened()):
        assert same(in_force(box), kept)
    after = put_one(outbox, trainer, theta, LEASES[1])
    delta = delta_of(theta, trainer)
    assert same(sent(after), {n: (delta[n] + kept[n]).bfloat16().float() for n in SHAPES})


class Far(Pull):
    """Ends a phase so far away that no message can tell it, at a finite place."""

    far = 1e38

    def run(self, *args, **told):
        result = super().run(*args, **told)
        self.theta["bias"] = torch.tensor(self.far)
        return result


def test_a_delta_beyond_reason_leaves_no_next_residual_either(opened, theta) -> None:
    entry = put_one(opened(), Far(), theta, LEASES[0])
    assert not entry.offer.finite
    assert sorted(p.name for p in entry.folder.iterdir()) == ["entry.json", "inner"]
    assert entry.offer.metrics.residual_norm == 0.0


def test_a_residual_that_no_message_can_tell_makes_its_delta_unusable(
    run, ranks, theta, caplog
) -> None:
    class Black(Bf16):
        """Loses everything."""

        def decode(self, parts, shape):
            return torch.zeros(shape)

    trainer = Far()
    trainer.far = -8e29
    outbox = Outbox(run, ranks=ranks, codec=Black(), keep=2, feedback=True)
    assert put_one(outbox, trainer, theta, LEASES[0]).offer.finite
    settle(outbox, "merged")
    kept = in_force(outbox)
    entry = put_one(outbox, trainer, theta, LEASES[1])
    assert (entry.offer.finite, entry.offer.payload) == (False, NOTHING)
    assert "its residual is 1.6e+30, beyond 1e+30" in caplog.text
    assert not entry.residual.exists()
    settle(outbox, "rejected")
    assert same(in_force(outbox), kept)
    outbox.close()


# ----------------------------------------------------------------------------------- the tag


def test_a_residual_of_another_delta_is_dropped_told_and_gone(opened, theta, run, caplog) -> None:
    outbox = opened()
    first = put_one(outbox, Pull(), theta, LEASES[0])
    settle(outbox, "merged")
    again = opened()
    dropped = again.rejoin("b" * 32)
    assert dropped == again.last
    size = first.offer.metrics.residual_norm
    assert f"after delta {first.offer.delta} is dropped (norm {size:.3g})" in caplog.text
    assert again.residual is None
    assert not list(run.rglob("residual.safetensors"))
    assert opened().rejoin("b" * 32) is None, "told once"
    trainer = Pull()
    entry = put_one(again, trainer, theta, LEASES[1])
    assert entry.offer.prev == ""
    delta = delta_of(theta, trainer)
    assert same(sent(entry), {n: delta[n].bfloat16().float() for n in SHAPES}), "without it"
    settle(again, "merged")
    assert again.residual.offer.delta == again.merged == entry.offer.delta


def test_a_residual_of_the_last_merged_delta_stays(opened, theta) -> None:
    outbox = opened()
    put_one(outbox, Pull(), theta, LEASES[0])
    settle(outbox, "merged")
    again = opened()
    assert again.rejoin(again.merged) is None
    pending = put_one(again, Pull(), theta, LEASES[1])
    for last in (again.merged, pending.offer.delta):  # undecided, or merged and not heard of
        newest = opened()
        assert newest.rejoin(last) is None
        assert same(in_force(newest), in_force(again))


def test_what_a_copied_folder_had_pending_leaves_no_residual(opened, theta, run) -> None:
    outbox = opened()
    put_one(outbox, Pull(), theta, LEASES[0])
    settle(outbox, "merged")
    put_one(outbox, Pull(), theta, LEASES[1])
    again = opened()
    assert again.rejoin("b" * 32) is not None
    settle(again, "merged")  # long ago, and another one since
    assert (again.residual, again.merged) == (None, "")
    assert not list(run.rglob("residual.safetensors"))


def test_a_residual_that_cannot_be_removed_is_named(opened, theta, monkeypatch) -> None:
    outbox = opened()
    first = put_one(outbox, Pull(), theta, LEASES[0])
    settle(outbox, "merged")
    first.residual.unlink()
    (first.residual / "in the way").mkdir(parents=True)
    again = opened()
    with pytest.raises(CheckpointError, match=r"cannot write .*phase-000000: .*make room"):
        again.rejoin("b" * 32)


def test_a_damaged_residual_is_named_with_the_way_on(opened, theta) -> None:
    outbox, trainer = opened(), Pull()
    first = put_one(outbox, trainer, theta, LEASES[0])
    settle(outbox, "merged")
    whole = first.residual.read_bytes()
    first.residual.write_bytes(whole[:5])
    with pytest.raises(PayloadError) as cut:
        put_one(outbox, trainer, theta, LEASES[1])
    assert "cannot hold a header" in str(cut.value)
    write_theta(first.residual, [("w", torch.zeros(2))], {"w": (2,)})
    with pytest.raises(PayloadError) as other:
        put_one(outbox, trainer, theta, LEASES[1])
    assert "is of another model" in str(other.value)
    for fault in (cut, other):
        assert f"remove {first.residual} to go on without it" in str(fault.value)
    assert trainer.gathered == 3 * len(SHAPES), "the other ranks do not wait"
    first.residual.unlink()
    put_one(opened(), trainer, theta, LEASES[1])


# ------------------------------------------------------------------------------ exact, or off


def test_an_exact_codec_writes_no_residual(opened, theta, run) -> None:
    outbox = opened(codec="fp32")
    entry = put_one(outbox, Pull(), theta, LEASES[0])
    assert sorted(p.name for p in entry.folder.iterdir()) == [
        "delta.safetensors", "entry.json", "inner",
    ]  # fmt: skip
    settle(outbox, "merged")
    assert (outbox.residual, entry.offer.metrics.residual_norm) == (None, 0.0)


def test_a_residual_goes_out_whole_with_an_exact_codec(opened, theta) -> None:
    outbox, trainer = opened(), Pull()
    put_one(outbox, trainer, theta, LEASES[0])
    settle(outbox, "merged")
    left, exact = in_force(outbox), opened(codec="fp32")
    entry = put_one(exact, trainer, theta, LEASES[1])
    delta = delta_of(theta, trainer)
    assert same(sent(entry), {name: delta[name] + left[name] for name in SHAPES})
    settle(exact, "merged")
    assert exact.residual is None


# ---------------------------------------------------------------------------- the whole way


def test_a_run_tells_what_was_never_sent(run, ranks) -> None:
    lone = Lone(run, ranks, codec="bf16")
    lone.train()
    assert audit(run).ok
    rows = read_json_lines(run / "metrics.jsonl")
    outer = [row for row in rows if row["split"] == "outer"]
    (row,) = [row for row in rows if row["split"] == "residual"]
    held = lone.outbox.residual
    assert held is not None
    size = norm(in_file(held.residual))
    assert (row["why"], row["delta"]) == ("end", outer[-1]["delta"])
    assert row["norm"] == outer[-1]["residual_norm"] == pytest.approx(size, rel=1e-12)
    assert row["of_delta"] == pytest.approx(size / outer[-1]["delta_norm"])
    assert f"never sent   what encoding lost: norm {size:.3g}" in lone.report.summary(ended="end")


def test_a_run_without_a_residual_tells_of_none(run, ranks) -> None:
    lone = Lone(run, ranks)
    lone.train()
    assert "never sent" not in lone.report.summary(ended="end")
    splits = {row["split"] for row in read_json_lines(run / "metrics.jsonl")}
    assert splits == {"train", "eval", "outer"}


def test_a_folder_from_an_old_copy_goes_on_without_its_residual(run, ranks, tmp_path) -> None:
    trainer = Pull()
    lone = Lone(run, ranks, codec="bf16", trainer=trainer)

    def copy() -> None:
        if trainer.step == 4:  # before the second delta
            shutil.copytree(run / "checkpoints", tmp_path / "copy")
        if trainer.step == 7:
            raise KeyboardInterrupt

    trainer.on_batch = copy
    with pytest.raises(KeyboardInterrupt):
        lone.train()
    shutil.rmtree(run / "checkpoints")
    (tmp_path / "copy").rename(run / "checkpoints")
    again = Lone(run, ranks, codec="bf16")
    old = again.outbox.residual
    assert old is not None
    again.train()
    assert audit(run).ok
    rows = read_json_lines(run / "metrics.jsonl")
    lost = [row for row in rows if row["split"] == "residual"]
    assert [(row["why"], row["delta"] == old.offer.delta) for row in lost] == [
        ("dropped", True), ("end", False),
    ]  # fmt: skip
    assert lost[0]["norm"] == old.offer.metrics.residual_norm > 0
    assert {row["outcome"] for row in rows if row["split"] == "outer"} == {"merged"}
    assert "dropped at the start" in again.report.summary(ended="end")
