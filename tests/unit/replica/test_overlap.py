"""The loop with `diloco.overlap`: theta as a closed form has it, exactly once, whatever happens."""

import json
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from accelerator import accelerator, far
from lone_replica import PLAN, RATE, SHAPES, SPACE, Lone, Pull, alone, drawn_for_merged, open_outbox

from pww.central.audit import audit, merged_deltas
from pww.errors import CheckpointError, PayloadError, Refused, Stopped, TrainerError
from pww.log import read_json_lines
from pww.replica.overlap import _shifted
from pww.transport.fingerprint import fingerprint
from pww.transport.payload import PayloadReader, write_theta
from pww.transport.tensorfile import TensorReader
from pww.wire import Release

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def group():
    ranks = alone()
    yield ranks
    ranks.close()


@pytest.fixture
def ranks(group):
    group.asked.clear()
    return group


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def check_exactly_once(run: Path) -> None:
    books = audit(run)
    assert books.ok
    assert (books.exactly_once, books.leased, books.unleased) == (11, 0, 0)
    assert drawn_for_merged(run) == Counter(range(SPACE.num_windows))


def weight(path: Path) -> np.ndarray:
    with TensorReader(path) as reader:
        return reader.get("weight").numpy()


def theta_of(run: Path) -> np.ndarray:
    return weight(max((run / "central" / "generations").glob("round-*")) / "theta.safetensors")


@dataclass(frozen=True)
class Phase:
    """A phase as a person would write it down: from theta (`fresh`), or from where it was."""

    windows: tuple[int, ...]
    fresh: bool
    merged: bool = True


def replay(phases: list[Phase]) -> np.ndarray:
    """theta's rows in fp64 from the formulas alone: an outer step that comes one phase late."""
    theta, outer_momentum, momentum = np.zeros(2), np.zeros(2), np.zeros(2)
    here, sent = theta, None

    def land() -> None:
        nonlocal theta, outer_momentum, sent
        if sent is not None:
            delta, partial = sent
            if partial:
                theta = theta - 0.7 * delta
            else:
                outer_momentum = 0.9 * outer_momentum + delta
                theta = theta - 0.7 * (delta + 0.9 * outer_momentum)
        sent = None

    for phase in phases:
        if phase.fresh:
            land()
            here = theta
        now = here
        for start in range(0, len(phase.windows), PLAN.batch_windows):
            batch = phase.windows[start : start + PLAN.batch_windows]
            goal = np.mean([[(w * k) % 97 / 97.0 for k in (3, 5)] for w in batch], axis=0)
            momentum = momentum / 2 + (now - goal)
            now = now - RATE * momentum
        moved = now - here
        if not phase.fresh:
            land()
        here = theta + moved
        partial = -(-len(phase.windows) // PLAN.batch_windows) < PLAN.inner_steps
        sent = (-moved, partial) if phase.merged else None
    land()
    return theta


def check_theta(run: Path, phases: list[Phase]) -> None:
    assert theta_of(run) == pytest.approx(np.tile(replay(phases), (3, 1)), rel=1e-5)


def span(first: int) -> tuple[int, ...]:
    """Windows of the phase that begins at a position, in the order of training."""
    return tuple(w for p in range(first, min(first + 2, 11)) for w in SPACE.windows(p))


SPANS = [span(first) for first in range(0, 11, 2)]
STRAIGHT = [Phase(windows, fresh=number == 0) for number, windows in enumerate(SPANS)]


class Carrier:
    """Another exchange in front of the real one; keeps what was pushed."""

    def __init__(self, exchange) -> None:
        self.inner = exchange
        self.offers: list = []
        self.payloads: dict[str, np.ndarray] = {}

    def pull(self, newest: int = 0):
        return self.inner.pull(newest)

    def push(self, offer, payload: Path):
        row = json.loads((payload.parent / "entry.json").read_text())
        assert row["offer"]["delta"] == offer.delta, "nothing leaves before it is durable"
        assert payload.parent.suffix == ""
        self.offers.append(offer)
        if offer.finite:
            with PayloadReader(payload, offer.payload) as reader:
                self.payloads[offer.delta] = reader.tensor("weight").numpy()
        return self.inner.push(offer, payload)

    def close(self) -> None:
        self.inner.close()


class Rejecting(Carrier):
    """The books reject the deltas of these numbers (the first is 1), as a central may."""

    def __init__(self, exchange, *numbers: int) -> None:
        super().__init__(exchange)
        self.numbers = numbers

    def push(self, offer, payload: Path):
        if len(self.offers) + 1 in self.numbers:
            books = self.inner._merger.books
            assert books.receive(offer) is None
            books.reject(offer.delta, "the central lost it")
        return super().push(offer, payload)


# ------------------------------------------------------------------------------ the whole way


def test_theta_is_that_of_an_outer_step_one_phase_late(run, ranks) -> None:
    lone = Lone(run, ranks, carrier=Carrier)
    lone.train(overlap=True)
    check_exactly_once(run)
    assert lone.trainer.drawn == [tuple(sorted(windows)) for windows in SPANS]
    check_theta(run, STRAIGHT)
    at_once = replay([Phase(windows, fresh=True) for windows in SPANS])
    assert not np.allclose(theta_of(run), at_once, rtol=1e-3), "the law tells the two apart"
    # each delta is based on the merge of the one before it, and stale by nothing
    assert [offer.base_round for offer in lone.exchange.offers] == [0, 1, 2, 3, 4, 5]
    rows = [r for r in read_json_lines(run / "metrics.jsonl") if r["split"] == "outer"]
    assert [(row["base_round"], row["round"]) for row in rows] == [(n, n + 1) for n in range(6)]
    # the trainer ends with theta, and nothing is left of what was on its way
    assert np.array_equal(lone.trainer.theta["weight"].numpy(), theta_of(run))
    assert lone.outbox.pending is None
    assert not list(run.glob("sent*"))


class Away(Pull):
    """Its parameters live on an accelerator."""

    def tensors(self):
        for name, value in super().tensors():
            yield name, far(value)


def test_parameters_on_an_accelerator_make_the_same_theta(run, ranks):
    with accelerator():
        Lone(run, ranks, trainer=Away()).train(overlap=True)
    check_exactly_once(run)
    check_theta(run, STRAIGHT)


@pytest.mark.parametrize("overlap", [False, True])
def test_no_phase_is_based_on_a_theta_without_the_replicas_last_merge(run, ranks, overlap) -> None:
    """A pull waits for a new round: at once, or (overlap) after the phase that runs meanwhile."""
    told: list = []

    class Noting(Carrier):
        def pull(self, newest: int = 0):
            theta = super().pull(newest)
            told.append(("pull", theta.round))
            return theta

        def push(self, offer, payload: Path):
            verdict = super().push(offer, payload)
            told.append(("merged", verdict.round))
            return verdict

    Lone(run, ranks, carrier=Noting).train(overlap=overlap)
    expected = [("pull", 0)]
    for number in range(1, 7):
        expected += [("merged", number), ("pull", number)]
    assert told == expected


class Gate(Carrier):
    """Delta n leaves only when phase n + 1 has made a step: without overlap it never does."""

    def __init__(self, exchange, trainer: Pull) -> None:
        super().__init__(exchange)
        self.events: list[str] = []
        self._stepped = threading.Semaphore(0)
        self._trainer = trainer
        trainer.on_batch = self._step

    def _step(self) -> None:
        self.events.append(f"step {self._trainer.step}")
        if self._trainer.step in (3, 5, 7, 9, 11):
            self._stepped.release()

    def push(self, offer, payload: Path):
        if len(self.offers) < 5:
            assert self._stepped.acquire(timeout=PATIENCE_S), "the next phase waits for the delta"
        verdict = super().push(offer, payload)
        self.events.append(f"verdict {verdict.round}")
        return verdict


def test_the_next_phase_runs_while_the_delta_travels(run, ranks) -> None:
    trainer = Pull()
    lone = Lone(run, ranks, trainer=trainer, carrier=lambda e: Gate(e, trainer))
    lone.train(overlap=True)
    events = lone.exchange.events
    for number in range(1, 6):
        assert events.index(f"step {2 * number + 1}") < events.index(f"verdict {number}")
    check_exactly_once(run)
    check_theta(run, STRAIGHT)


def test_what_is_on_its_way_counts_as_trained(run, ranks) -> None:
    """The learning rate and the counted tokens go on where the phase before ended."""
    trainer = Pull()
    lone = Lone(run, ranks, trainer=trainer, carrier=lambda e: Gate(e, trainer))
    lone.train(overlap=True)
    starts, ends = zip(*trainer.spans, strict=True)
    assert (starts[0], ends[-1]) == (0.0, 1.0)
    assert ends[:-1] == starts[1:]
    tokens = [r["tokens"] for r in read_json_lines(run / "metrics.jsonl") if r["split"] == "train"]
    assert tokens == sorted(tokens)
    assert tokens[-1] == 42 * 8


def test_held_out_losses_are_thetas(run, ranks) -> None:
    lone = Lone(run, ranks, every_rounds=2)
    seen: list[np.ndarray] = []
    real = lone.trainer.evaluate

    def evaluate():
        current = weight(lone.exchange._merger.published.current.theta)
        assert np.array_equal(lone.trainer.theta["weight"].numpy(), current)
        seen.append(current)
        return real()

    lone.trainer.evaluate = evaluate
    lone.train(overlap=True)
    rows = [r for r in read_json_lines(run / "metrics.jsonl") if r["split"] == "eval"]
    assert [row["round"] for row in rows] == [0, 2, 4, 6]
    assert [row["loss"] for row in rows] == [
        pytest.approx(float((theta.astype(float) ** 2).mean()), rel=1e-6) for theta in seen
    ]
    check_theta(run, STRAIGHT)


# ---------------------------------------------------------------------- what does not go well


def test_rejections_without_end_end_the_replica(run, ranks) -> None:
    lone = Lone(run, ranks, carrier=lambda e: Rejecting(e, *range(1, 50)))
    with pytest.raises(TrainerError, match="10 deltas in a row were rejected, the last one beca"):
        lone.train(overlap=True)
    assert (audit(run).merges, len(lone.exchange.offers)) == (0, 10)
    Lone(run, ranks).train(overlap=True)
    check_exactly_once(run)


@pytest.mark.parametrize("number", [1, 3])
def test_what_a_rejected_delta_moved_is_nowhere(run, ranks, number: int) -> None:
    lone = Lone(run, ranks, carrier=lambda e: Rejecting(e, number))
    lone.train(overlap=True)
    check_exactly_once(run)
    assert (lone.report.totals.merged, lone.report.totals.rejected) == (6, 1)
    check_theta(run, as_drawn(run, [True] + [False] * 6))
    bases = [offer.base_round for offer in lone.exchange.offers]
    assert bases == sorted([*range(6), number - 1]), "from the newest theta, merged into or not"


def as_drawn(run: Path, fresh: list[bool]) -> list[Phase]:
    """The phases of the draw log in the order of training; which began from theta is given."""
    _, merged = merged_deltas(run)
    rows = read_json_lines(run / "draws.jsonl")
    by_windows = {frozenset(span(first)): span(first) for first in range(11)}
    by_windows |= {frozenset(SPACE.windows(p)): tuple(SPACE.windows(p)) for p in range(11)}
    return [
        Phase(by_windows[frozenset(row["windows"])], fresh=new, merged=row["delta"] in merged)
        for row, new in zip(rows, fresh, strict=True)
    ]


@pytest.mark.parametrize("rejected", [(), (1,), (2, 3), (5,)])
def test_residuals_follow_verdicts(run, ranks, rejected) -> None:
    """What arrived and the residual in force are together what the merged phases moved."""
    trainer = Pull()
    lone = Lone(
        run, ranks, trainer=trainer, codec="bf16", carrier=lambda e: Rejecting(e, *rejected)
    )
    moved: list[np.ndarray] = []
    real = trainer.run

    def run_phase(*args, **more):
        before = trainer.theta["weight"].double().numpy()
        result = real(*args, **more)
        moved.append(before - trainer.theta["weight"].double().numpy())
        return result

    trainer.run = run_phase
    lone.train(overlap=True)
    check_exactly_once(run)
    offers = lone.exchange.offers
    _, merged = merged_deltas(run)
    before = ""
    for offer in offers:
        assert offer.prev == before
        before = offer.delta if offer.delta in merged else before
    kept = [n for n, offer in enumerate(offers) if offer.delta in merged]
    arrived = sum(lone.exchange.payloads[offers[n].delta].astype(float) for n in kept)
    outbox = open_outbox(run, ranks, codec="bf16")
    outbox.close()
    residual = outbox.residual
    assert residual is not None
    left = weight(residual.residual).astype(float)
    assert np.abs(left).max() > 1e-5, "which phase was the last one decides how much"
    assert arrived + left == pytest.approx(sum(moved[n] for n in kept), abs=3e-6)


@pytest.mark.parametrize("phase", [1, 2, 4])
def test_after_a_nan_a_phase_starts_from_theta(run, ranks, phase: int) -> None:
    lone = Lone(run, ranks, trainer=Pull(nan_in=(phase,)))
    lone.train(overlap=True)
    check_exactly_once(run)
    assert lone.trainer.resets == 1
    assert (lone.report.totals.merged, lone.report.totals.rejected) == (6, 1)
    assert np.isfinite(theta_of(run)).all()
    assert np.isfinite(lone.trainer.momentum["weight"].numpy()).all()


def test_a_phase_whose_lease_was_lost_is_dropped_and_the_next_one_starts_from_theta(
    run, ranks
) -> None:
    lone = Lone(run, ranks)
    session, trainer = lone.ends.session, lone.trainer
    real, from_theta = trainer.run, []

    def run_phase(*args, **more):
        current = weight(lone.exchange._merger.published.current.theta)
        from_theta.append(np.array_equal(trainer.theta["weight"].numpy(), current))
        return real(*args, **more)

    def take_back() -> None:
        if trainer.step == 3:
            lease = max(session._held)
            session._port.release(
                Release(replica="local/a", incarnation=session.incarnation, leases=(lease,))
            )
            session.beat()

    trainer.run, trainer.on_batch = run_phase, take_back
    lone.train(overlap=True)
    check_exactly_once(run)
    assert len(trainer.drawn[1]) == PLAN.batch_windows, "it ends at its next step"
    assert trainer.drawn[1][0] in trainer.drawn[2], "its blocks were leased again"
    assert from_theta == [True, False, True, False, False, False, False]
    assert lone.report.totals.merged == 6


@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_a_stop_leaves_one_delta_behind_that_the_next_process_delivers(run, ranks, step) -> None:
    trainer = Pull()

    class Slow(Carrier):
        """No delta arrives once the stop was asked for."""

        def push(self, offer, payload: Path):
            if step // 2 == len(self.offers) + 1 and step % 2:
                assert ranks.asked.wait(PATIENCE_S)
                raise Stopped("stopped while waiting for the verdict")
            return super().push(offer, payload)

    def stop() -> None:
        if trainer.step == step:
            ranks.ask_to_stop()

    trainer.on_batch = stop
    first = Lone(run, ranks, trainer=trainer, carrier=Slow)
    done = step % PLAN.inner_steps
    said = f"stopped after {done} steps of a phase, which is not delivered" if done else "stopped"
    with pytest.raises(Stopped, match=said):
        first.train(overlap=True)
    pending = first.outbox.pending
    if done and step > 2:
        assert pending is not None
        assert pending.offer.base_round == audit(run).merges == step // 2 - 1
    ranks.asked.clear()
    again = Lone(run, ranks, carrier=Carrier)
    again.train(overlap=True)
    if pending is not None:
        assert again.exchange.offers[0].delta == pending.offer.delta
    check_exactly_once(run)
    assert audit(run).merges == 6
    durable = 6 - again.trainer.phases
    fresh = [number in (0, durable) for number in range(6)]
    check_theta(run, as_drawn(run, fresh))


def test_a_verdict_that_can_never_come_ends_the_phase_at_its_next_step(run, ranks) -> None:
    third = threading.Event()

    class Broken(Carrier):
        def push(self, offer, payload: Path):
            if self.offers:
                assert third.wait(PATIENCE_S)
                raise Refused("replica local/a was revoked", code="unknown")
            return super().push(offer, payload)

    lone = Lone(run, ranks, carrier=Broken)
    trainer = lone.trainer

    def wait_for_the_fault() -> None:
        if trainer.step == 5:
            third.set()
            for thread in threading.enumerate():
                if thread.name == "push":
                    thread.join(PATIENCE_S)

    trainer.on_batch = wait_for_the_fault
    with pytest.raises(Refused, match="replica local/a was revoked"):
        lone.train(overlap=True)
    assert trainer.step == 5, "the second step of the third phase is not made"
    assert lone.outbox.pending is not None
    Lone(run, ranks).train(overlap=True)
    check_exactly_once(run)


def test_a_fault_between_phases_is_raised_too(run, ranks) -> None:
    class Broken(Carrier):
        def push(self, offer, payload: Path):
            if len(self.offers) == 5:  # the last one: nothing runs beside it
                raise PayloadError("it has another digest")
            return super().push(offer, payload)

    with pytest.raises(PayloadError, match=r"phase-000005 cannot be sent \(it has another digest"):
        Lone(run, ranks, carrier=Broken).train(overlap=True)
    Lone(run, ranks).train(overlap=True)
    check_exactly_once(run)


def test_a_disk_that_is_full_says_what_is_safe(run, ranks) -> None:
    lone = Lone(run, ranks)
    obstacle = run / "sent.safetensors.part"
    obstacle.mkdir()
    with pytest.raises(CheckpointError) as fault:
        lone.train(overlap=True)
    told = str(fault.value)
    assert told.startswith(f"cannot write {run / 'sent.safetensors'}: ")
    assert told.endswith(f"What was sent is safe: make room, then go on with resume={run}")
    assert lone.trainer.gathered == 3 * len(SHAPES), "seed, delta, and this: no rank waits"
    obstacle.rmdir()
    for thread in threading.enumerate():
        if thread.name == "push":  # in its own process it would have ended with it
            thread.join(60)
    Lone(run, ranks).train(overlap=True)
    check_exactly_once(run)


def test_a_damaged_theta_is_named_and_costs_no_delta(run, ranks) -> None:
    class Torn(Carrier):
        def pull(self, newest: int = 0):
            theta = super().pull(newest)
            if theta.round == 2 and not torn.exists():
                torn.write_bytes(theta.path.read_bytes()[:-3])
                return type(theta)(2, torn, theta.state_hash, theta.report, theta.committed_windows)
            return theta

    torn = run / "torn.safetensors"
    with pytest.raises(PayloadError, match="torn"):
        Lone(run, ranks, carrier=Torn).train(overlap=True)
    assert audit(run).merges == 2
    Lone(run, ranks).train(overlap=True)
    check_exactly_once(run)


def test_weights_that_were_kept_and_changed_on_the_disk_are_no_movement(tmp_path: Path) -> None:
    """Else the flipped bit would go to the central as a part of the delta."""
    theta, sent = tmp_path / "theta", tmp_path / "sent"
    now = torch.arange(6.0)
    for path, value in ((theta, 1.0), (sent, 2.0)):
        write_theta(path, [("w", torch.full((6,), value))], {"w": (6,)})
    known_by = fingerprint(sent)
    moved = dict(_shifted(iter([("w", now)]), theta=theta, sent=sent, known_by=known_by))
    assert torch.equal(moved["w"], now - 1.0)
    data = bytearray(sent.read_bytes())
    data[-1] ^= 1
    sent.write_bytes(bytes(data))
    with pytest.raises(PayloadError, match=r"sent was changed on the disk while a phase ran"):
        list(_shifted(iter([("w", now)]), theta=theta, sent=sent, known_by=known_by))
