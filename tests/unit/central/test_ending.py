"""When a coordinator alone may go, and when an aggregator need not wait for one."""

import json
import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import SHAPES, SPACE, config

from pww.central.coordinator import Coordinator
from pww.central.ending import End, complete, published_round, refuse_complete
from pww.central.ledger import Ledger
from pww.clock import ManualClock
from pww.errors import StateError
from pww.wire import (
    Acquire,
    Exhausted,
    Leased,
    Leave,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    Register,
    RoundReport,
    model_digest,
)


class Run:
    """A coordinator and one site that does all the work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self._tokens = folder, ManualClock(50.0), 0
        (folder / "central").mkdir()
        self.ledger = Ledger(folder / "central" / "ledger.sqlite")
        self.books = Coordinator(
            self.ledger, SPACE, darl=config().darl, aggregator_port=1, clock=self.clock
        )
        self.end = End(self.books, folder, linger_s=60.0, clock=self.clock)
        self.books.seed(generation="round-000000", state_hash="0" * 64)

    def token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:032x}"

    def join(self, replica: str) -> str:
        incarnation = self.token()
        self.books.register(
            Register(
                replica=replica, incarnation=incarnation, node_key="", run="", space=SPACE.info(),
                model=model_digest(SHAPES), last_round=0,
            )
        )  # fmt: skip
        return incarnation

    def exhaust(self, replica: str, incarnation: str) -> None:
        """Leases, delivers and merges to the end of the corpus."""
        prev = ""
        while True:
            answer = self.books.acquire(
                Acquire(
                    replica=replica, incarnation=incarnation, key=self.token(), num_blocks=100,
                    ttl_s=100.0,
                )
            ).answer  # fmt: skip
            if isinstance(answer, Exhausted):
                return
            lease = answer.lease  # type: ignore[union-attr]
            tokens = SPACE.num_span_windows(lease.span) * (SPACE.window_tokens - 1)
            number = self.books.round
            delta = self.token()
            offer = Offer(
                run=self.books.run, replica=replica, incarnation=incarnation, delta=delta,
                prev=prev, base_round=number, base_hash=f"{number:064x}",
                spans=(Leased(lease=lease.id, span=lease.span),), tokens=tokens, partial=False,
                finite=True,
                payload=PayloadInfo(codec="fp32", size_bytes=1, digest="b" * 64),
                metrics=PhaseMetrics(
                    steps=1, tokens=tokens, loss=1.0, phase_seconds=1.0, tokens_per_s=1.0
                ),
            )  # fmt: skip
            assert self.books.receive(offer) is None
            self.books.close_round(
                merged=[delta], generation=f"round-{number + 1:06d}",
                state_hash=f"{number + 1:064x}",
                report=RoundReport(
                    round=number + 1, merged=(replica,), rejected=(), tokens=tokens, loss=1.0,
                    delta_norm=1.0, avg_delta_norm=1.0, agreement=1.0, drift_mean=0.0,
                    drift_max=0.0, bytes_received=1, merge_seconds=0.1,
                ),
            )  # fmt: skip
            prev = delta

    def publish(self, round_: object) -> None:
        (self.folder / "final").mkdir(exist_ok=True)
        (self.folder / "final" / "theta.json").write_text(json.dumps({"round": round_}))

    def leave(self, replica: str, incarnation: str) -> None:
        self.books.leave(Leave(replica=replica, incarnation=incarnation))


@pytest.fixture
def run(tmp_path: Path):
    made = Run(tmp_path)
    yield made
    made.ledger.close()


def test_it_goes_when_all_have_left_theta_is_there_and_the_aggregator_is_gone(run, caplog) -> None:
    caplog.set_level(logging.INFO, "pww.central.ending")
    a = run.join("s/a")
    assert not run.end.reached(attached=False)
    run.exhaust("s/a", a)
    run.publish(run.books.round)
    assert not run.end.reached(attached=False), "it is still live"
    run.publish(run.books.round - 1)
    run.leave("s/a", a)
    for _ in range(3):
        assert not run.end.reached(attached=True), "of an earlier round"
    assert caplog.text.count("waiting for the aggregator to publish the final theta") == 1
    run.clock.advance(31.0)
    assert not run.end.reached(attached=True)
    assert caplog.text.count("waiting for the aggregator") == 2
    run.publish(run.books.round)
    assert not run.end.reached(attached=True), "it may still write its last rows"
    assert run.end.reached(attached=False)


def test_who_was_silent_at_the_end_is_waited_for(run) -> None:
    a, _ = run.join("s/a"), run.join("s/b")
    run.exhaust("s/a", a)
    run.leave("s/a", a)
    run.publish(run.books.round)
    run.clock.advance(100.0)
    run.books.tick()
    assert [member.replica for member in run.books.silent()] == ["s/b"]
    assert not run.end.reached(attached=False)
    run.clock.advance(59.0)
    assert not run.end.reached(attached=False)
    run.clock.advance(1.5)
    assert run.end.reached(attached=False)


def test_an_aggregator_does_not_wait_for_the_coordinator_of_a_complete_run(run) -> None:
    refuse_complete(run.folder / "nothing", "r")
    refuse_complete(run.folder, "r")
    a = run.join("s/a")
    run.exhaust("s/a", a)
    run.publish(run.books.round)
    refuse_complete(run.folder, "r")  # it may come back
    run.leave("s/a", a)
    run.publish(run.books.round - 1)
    refuse_complete(run.folder, "r")  # nobody has published the last one
    run.publish(run.books.round)
    with pytest.raises(StateError, match=r"run r is complete: [0-9]+ merges, theta in .*final\. "):
        refuse_complete(run.folder, "r")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"round": "x"}', "{}"])
def test_a_note_that_is_none_counts_as_none(tmp_path: Path, text: str) -> None:
    assert published_round(tmp_path) == -1
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "theta.json").write_text(text)
    assert published_round(tmp_path) == -1
    refuse_complete(tmp_path, "r")


def test_a_ledger_that_cannot_be_read_is_the_coordinators_to_name(run) -> None:
    run.publish(0)
    run.ledger.close()
    (run.folder / "central" / "ledger.sqlite").write_bytes(b"no database at all" * 100)
    for side in ("-wal", "-shm"):
        (run.folder / "central" / f"ledger.sqlite{side}").unlink(missing_ok=True)
    refuse_complete(run.folder, "r")


def test_what_is_said_of_a_complete_run(run) -> None:
    told = str(complete("r", round_=3, status=run.books.status(), theta=Path("/x/theta")))
    assert told == (
        f"run r is complete: 3 merges, 0 of {SPACE.num_positions} blocks committed, theta in "
        "/x/theta. Start a new one with run.name=…"
    )
