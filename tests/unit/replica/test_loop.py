"""The loop with real books, merge and outbox: exactly once to the end, whatever happens between."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import PLAN, RATE, SHAPES, SPACE, TOKENS, Lone, Pull, alone, drawn_for_merged

from pww.central.audit import audit
from pww.errors import PayloadError, Stopped, TrainerError
from pww.lease.space import BlockSpace
from pww.log import read_json_lines
from pww.transport.tensorfile import TensorReader
from pww.wire import Release

ALL = Counter(range(SPACE.num_windows))


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
    assert drawn_for_merged(run) == ALL


def theta_of(run: Path) -> dict[str, np.ndarray]:
    folder = max((run / "central" / "generations").glob("round-*"))
    with TensorReader(folder / "theta.safetensors") as reader:
        return {name: reader.get(name).numpy() for name in SHAPES}


def replay(phases: list[tuple[int, ...]]) -> np.ndarray:
    """theta's weight in fp64 after these phases, from the formulas alone."""
    theta, outer_momentum, momentum = np.zeros(2), np.zeros(2), np.zeros(2)  # three equal rows
    for windows in phases:
        inner = theta
        for start in range(0, len(windows), PLAN.batch_windows):
            batch = windows[start : start + PLAN.batch_windows]
            goal = np.mean([[(w * k) % 97 / 97.0 for k in (3, 5)] for w in batch], axis=0)
            momentum = momentum / 2 + (inner - goal)
            inner = inner - RATE * momentum
        delta = theta - inner
        if -(-len(windows) // PLAN.batch_windows) < PLAN.inner_steps:
            theta = theta - 0.7 * delta
        else:
            outer_momentum = 0.9 * outer_momentum + delta
            theta = theta - 0.7 * (delta + 0.9 * outer_momentum)
    return theta


def spans_in_order() -> list[tuple[int, ...]]:
    spans = [range(start, min(start + 2, 11)) for start in range(0, 11, 2)]
    return [tuple(w for p in span for w in SPACE.windows(p)) for span in spans]


class Carrier:
    """Another exchange in front of the real one."""

    def __init__(self, exchange) -> None:
        self.inner = exchange
        self.pushed: list[str] = []

    def pull(self, newest: int = 0):
        return self.inner.pull(newest)

    def push(self, offer, payload: Path):
        self.pushed.append(offer.delta)
        return self.inner.push(offer, payload)

    def close(self) -> None:
        self.inner.close()


# ------------------------------------------------------------------------------ the whole way


def test_every_block_is_in_theta_once_and_theta_is_what_the_formulas_say(run, ranks) -> None:
    lone = Lone(run, ranks)
    lone.train()
    check_exactly_once(run)
    books = audit(run)
    assert books.merges == 6
    assert (books.shares[0].replica, books.shares[0].blocks) == ("local/a", 11)
    assert lone.trainer.drawn == [tuple(sorted(windows)) for windows in spans_in_order()]
    assert lone.trainer.step == 11
    assert lone.outbox.pending is None
    expected = replay(spans_in_order())
    weight = theta_of(run)["weight"]
    assert weight == pytest.approx(np.tile(expected, (3, 1)), rel=1e-5)
    # the trainer holds the last theta, the one that was evaluated
    assert np.array_equal(lone.trainer.theta["weight"].numpy(), weight)


def test_the_schedule_follows_what_is_committed(run, ranks) -> None:
    lone = Lone(run, ranks)
    lone.train()
    starts = [start for start, _ in lone.trainer.spans]
    ends = [end for _, end in lone.trainer.spans]
    assert starts[0] == 0.0
    assert ends[:-1] == starts[1:]
    assert ends[-1] == 1.0


def test_a_finished_run_has_nothing_left_to_train(run, ranks) -> None:
    Lone(run, ranks).train()
    draws = (run / "draws.jsonl").read_bytes()
    again = Lone(run, ranks)
    again.train()
    assert again.trainer.phases == 0
    assert (run / "draws.jsonl").read_bytes() == draws
    check_exactly_once(run)


def test_epochs_train_everything_again(tmp_path, ranks) -> None:
    space = BlockSpace(
        num_windows=10, block_windows=4, seed=1, epochs=2, window_tokens=9, corpus="c" * 64
    )
    lone = Lone(tmp_path / "run", ranks, space=space)
    lone.train()
    assert audit(lone.run).exactly_once == 6
    assert drawn_for_merged(lone.run) == Counter(dict.fromkeys(range(10), 2))


def test_the_central_is_told_windows_a_second(run, ranks) -> None:
    lone = Lone(run, ranks)
    told = []
    measured = lone.ends.session.measured
    lone.ends.session.measured = lambda **rates: (told.append(rates), measured(**rates))
    lone.train()
    # Pull takes a second a step of four windows; the last phase is short
    sizes = [len(windows) for windows in spans_in_order()]
    steps = [-(-size // 4) for size in sizes]
    assert told == [
        {"phase_s": float(n), "windows_per_s": size / n}
        for size, n in zip(sizes, steps, strict=True)
    ]


# ------------------------------------------------------------------------- stops and crashes


class Cut(Carrier):
    """The process ends at the n-th push: before it is delivered, or when the answer comes."""

    def __init__(self, exchange, *, at: int, delivered: bool) -> None:
        super().__init__(exchange)
        self.at, self.delivered = at, delivered

    def push(self, offer, payload: Path):
        if len(self.pushed) + 1 == self.at and not self.delivered:
            raise Stopped("the power went")
        verdict = super().push(offer, payload)
        if len(self.pushed) == self.at:
            raise Stopped("the power went")
        return verdict


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_pending_delta_is_delivered_first_and_not_trained_again(run, ranks, at, delivered):
    first = Lone(run, ranks, carrier=lambda e: Cut(e, at=at, delivered=delivered))
    with pytest.raises(Stopped):
        first.train()
    pending = first.outbox.pending
    assert pending is not None
    assert audit(run).merges == at - (not delivered)
    carriers: list[Carrier] = []
    again = Lone(run, ranks, carrier=lambda e: carriers.append(Carrier(e)) or carriers[-1])
    assert again.outbox.pending == pending
    again.train()
    assert carriers[0].pushed[0] == pending.offer.delta
    assert again.trainer.phases == 6 - at
    assert audit(run).merges == 6
    check_exactly_once(run)
    draws = read_json_lines(run / "draws.jsonl")
    assert len(draws) == len({row["delta"] for row in draws}) == 6
    assert again.report.totals.merged == 6 - at + 1
    # a resumed inner state makes the second life the continuation of the first
    expected = replay(spans_in_order())
    assert theta_of(run)["weight"] == pytest.approx(np.tile(expected, (3, 1)), rel=1e-5)


@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_stop_in_a_phase_delivers_nothing_and_loses_nothing(run, ranks, step: int) -> None:
    trainer = Pull()

    def stop() -> None:
        if trainer.step == step:
            ranks.ask_to_stop()

    trainer.on_batch = stop
    first = Lone(run, ranks, trainer=trainer)
    done = step % PLAN.inner_steps
    if done:
        with pytest.raises(Stopped, match=f"stopped after {done} steps of a phase, .* not deliv"):
            first.train()
    else:  # at a boundary the phase is whole: it is durable, and the stop comes at the next wait
        with pytest.raises(Stopped):
            first.train()
    assert len(read_json_lines(run / "draws.jsonl")) == step // 2
    merged = audit(run).merges
    assert merged <= step // 2
    ranks.asked.clear()
    again = Lone(run, ranks)
    again.train()
    check_exactly_once(run)
    assert audit(run).merges == 6
    assert trainer.phases - bool(done) + again.trainer.phases == 6


# ------------------------------------------------------------------------- rejections and nan


class Rejecting(Carrier):
    """The books take the first `count` deltas and reject them, as a central may."""

    def __init__(self, exchange, *, count: int) -> None:
        super().__init__(exchange)
        self.left = count

    def push(self, offer, payload: Path):
        if self.left:
            self.left -= 1
            books = self.inner._merger.books
            assert books.receive(offer) is None
            books.reject(offer.delta, "the central lost it")
        return super().push(offer, payload)


@pytest.mark.parametrize("count", [1, 4])
def test_a_rejected_deltas_blocks_are_trained_again(run, ranks, count, caplog) -> None:
    lone = Lone(run, ranks, carrier=lambda e: Rejecting(e, count=count))
    lone.train()
    check_exactly_once(run)
    assert audit(run).merges == 6
    assert lone.trainer.phases == 6 + count
    assert lone.trainer.resets == 0
    assert (lone.report.totals.merged, lone.report.totals.rejected) == (6, count)
    assert caplog.text.count("was rejected: the central lost it") == count
    drawn = [tuple(row["windows"]) for row in read_json_lines(run / "draws.jsonl")]
    assert len(drawn) == 6 + count


def test_a_nan_is_not_merged_and_the_optimiser_starts_anew(run, ranks) -> None:
    lone = Lone(run, ranks, trainer=Pull(nan_in=(2,)))
    lone.train()
    check_exactly_once(run)
    assert audit(run).merges == 6
    assert lone.trainer.resets == 1
    assert (lone.report.totals.merged, lone.report.totals.rejected) == (6, 1)
    assert all(np.isfinite(value).all() for value in theta_of(run).values())


def test_three_nan_in_a_row_end_the_run_with_advice(run, ranks) -> None:
    lone = Lone(run, ranks, trainer=Pull(nan_in=(2, 3, 4)))
    with pytest.raises(TrainerError) as fault:
        lone.train()
    assert str(fault.value).startswith("3 phases ended in nan or inf, and none was merged")
    assert "lower optim.lr" in str(fault.value)
    assert "diloco.outer.lr" in str(fault.value)
    assert (lone.trainer.phases, lone.trainer.resets) == (4, 3)
    assert audit(run).merges == 1
    # what was merged stays: with another learning rate the run goes on
    Lone(run, ranks).train()
    check_exactly_once(run)


def test_a_good_phase_between_starts_the_count_anew(run, ranks) -> None:
    lone = Lone(run, ranks, trainer=Pull(nan_in=(1, 2, 4, 5, 7, 8)))
    lone.train()
    check_exactly_once(run)
    assert lone.trainer.resets == 6


class Empty(Carrier):
    """Says that every delta was computed from no tokens, which the real central rejects."""

    def push(self, offer, payload: Path):
        return super().push(offer.model_copy(update={"tokens": 0}), payload)


def test_rejections_without_end_end_the_replica(run, ranks) -> None:
    lone = Lone(run, ranks, carrier=Empty)
    with pytest.raises(
        TrainerError, match="10 deltas in a row were rejected, the last one because"
    ):
        lone.train()
    assert lone.trainer.phases == 10
    assert audit(run).merges == 0
    Lone(run, ranks).train()
    check_exactly_once(run)


def test_a_phase_whose_lease_was_taken_back_ends_at_once(run, ranks) -> None:
    lone = Lone(run, ranks)
    session = lone.ends.session

    def take_back() -> None:
        if lone.trainer.phases == 1 and lone.trainer.step == 3:
            (lease,) = list(session._held)
            session._port.release(
                Release(replica="local/a", incarnation=session.incarnation, leases=(lease,))
            )
            session.beat()

    lone.trainer.on_batch = take_back
    lone.train()
    check_exactly_once(run)
    assert len(lone.trainer.drawn[1]) == PLAN.batch_windows  # one step, then no more
    assert lone.trainer.drawn[1][0] in lone.trainer.drawn[2]  # its blocks were leased again


@pytest.mark.parametrize("pending", [False, True])
def test_a_resumed_run_does_not_start_from_the_nan_it_saved(run, ranks, pending: bool) -> None:
    """The inner state beside a delta that is not finite is not finite either."""
    trainer = Pull(nan_in=(2,))
    carrier = (lambda e: Cut(e, at=2, delivered=False)) if pending else Carrier

    def stop() -> None:
        if trainer.phases == 2:
            ranks.ask_to_stop()

    trainer.on_batch = stop
    first = Lone(run, ranks, trainer=trainer, carrier=carrier)
    with pytest.raises(Stopped):
        first.train()
    assert not first.outbox.last.offer.finite
    assert (first.outbox.pending is not None) == pending
    ranks.asked.clear()
    again = Lone(run, ranks)
    again.train()
    assert again.trainer.resets == 1
    assert again.report.totals.rejected == int(pending)
    check_exactly_once(run)


def test_a_checkpoint_taken_away_does_not_end_in_rejection_after_rejection(run, ranks) -> None:
    """What the message of an unreadable entry advises must lead somewhere."""
    import shutil

    first = Lone(run, ranks, keep=4, carrier=lambda e: Cut(e, at=4, delivered=False))
    with pytest.raises(Stopped):
        first.train()
    for gone in sorted((run / "checkpoints").iterdir())[-2:]:  # the pending one, and a merged one
        shutil.rmtree(gone)
    again = Lone(run, ranks)

    def give_up() -> None:
        if again.trainer.phases > 20:
            ranks.ask_to_stop()

    again.trainer.on_batch = give_up
    again.train()
    check_exactly_once(run)


def test_tokens_are_counted_over_the_replicas_life(run, ranks) -> None:
    first = Lone(run, ranks, carrier=lambda e: Cut(e, at=3, delivered=True))
    with pytest.raises(Stopped):
        first.train()
    again = Lone(run, ranks)
    again.train()
    assert again.outbox.last.tokens_total == 42 * TOKENS
    assert again.outbox.last.step == again.trainer.step == 11


def test_a_damaged_delta_says_how_to_go_on(run, ranks) -> None:
    class Broken(Carrier):
        def push(self, offer, payload: Path):
            payload.write_bytes(payload.read_bytes()[:-1] + b"?")
            return super().push(offer, payload)

    with pytest.raises(PayloadError, match=r"000000 cannot be sent \(.*\): remove that folder"):
        Lone(run, ranks, carrier=Broken).train()
    shutil.rmtree(run / "checkpoints" / "phase-000000")
    Lone(run, ranks).train()
    check_exactly_once(run)


class Held:
    """Time for a loop that waits: every pause is noted, and may change what the session knows."""

    def __init__(self, *then) -> None:
        self.pauses: list[float] = []
        self._then = list(then)

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    def wait(self, event, timeout_s: float) -> bool:
        self.pauses.append(timeout_s)
        self._then.pop(0)()
        return event.is_set()


def test_a_phase_is_held_while_its_lease_may_have_expired(run, ranks, caplog) -> None:
    lone = Lone(run, ranks)
    session = lone.ends.session
    trainer = lone.trainer
    real, drawn = session.standing, []

    def doubtful() -> None:
        if trainer.step == 3:
            session.standing = lambda lease: "pause"

    def nothing() -> None:
        drawn.append(trainer.step)

    def known() -> None:
        drawn.append(trainer.step)
        session.standing = real

    trainer.on_batch = doubtful
    held = Held(nothing, nothing, known)
    with caplog.at_level("INFO"):
        lone.train(clock=held)
    assert drawn == [3, 3, 3], "no step was made meanwhile"
    assert held.pauses == [1.0, 1.0, 1.0]
    assert caplog.text.count("may have expired, the central has not answered for so long") == 1
    assert "is still ours: the phase goes on" in caplog.text
    check_exactly_once(run)


def test_a_held_phase_whose_lease_is_lost_is_dropped(run, ranks) -> None:
    lone = Lone(run, ranks)
    session, trainer = lone.ends.session, lone.trainer
    real = session.standing

    def doubtful() -> None:
        if trainer.step == 3:
            session.standing = lambda lease: "pause"

    def lost() -> None:
        session.standing = real
        books = session._port
        (lease,) = list(session._held)
        books.release(Release(replica="local/a", incarnation=session.incarnation, leases=(lease,)))
        session.beat()

    trainer.on_batch = doubtful
    lone.train(clock=Held(lost))
    check_exactly_once(run)


def test_a_held_phase_can_be_stopped(run, ranks) -> None:
    lone = Lone(run, ranks)
    session, trainer = lone.ends.session, lone.trainer

    def doubtful() -> None:
        if trainer.step == 3:
            session.standing = lambda lease: "pause"

    trainer.on_batch = doubtful
    with pytest.raises(Stopped, match="stopped after 1 steps of a phase"):
        lone.train(clock=Held(ranks.asked.set))


def test_a_lease_lost_while_theta_was_waited_for_is_not_trained(run, ranks, caplog) -> None:
    lone = Lone(run, ranks)
    session, exchange = lone.ends.session, lone.exchange
    real, pulls = exchange.pull, []

    def pull(newest: int = 0):
        pulls.append(newest)
        if len(pulls) == 2:
            (lease,) = list(session._held)
            session._port.release(
                Release(replica="local/a", incarnation=session.incarnation, leases=(lease,))
            )
            session.beat()
        return real(newest)

    exchange.pull = pull
    lone.train()
    assert "was lost before its phase began" in caplog.text
    assert lone.trainer.phases == 6
    assert all(end <= 1.0 for _, end in lone.trainer.spans)
    check_exactly_once(run)
