"""Between the start and the end of a send the windows of the next phase are fetched."""

import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import Lone, Pull

PATIENCE_S = 30.0
PHASES = 6


class Noting(Pull):
    """Notes what happens, and when; fetching is what a test waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, float, tuple[int, ...]]] = []
        self.expected = threading.Semaphore(0)

    def note(self, what: str, windows=()) -> None:
        self.rows.append((what, time.monotonic(), tuple(windows)))

    def expect(self, windows) -> None:
        self.note("expect", windows)
        self.expected.release()

    def run(self, windows, **told):
        self.note("run", windows)
        return super().run(windows, **told)


class Slow:
    """A send is not over before the windows of the next phase were fetched; the last one is."""

    def __init__(self, exchange, trainer: Noting) -> None:
        self._exchange, self._trainer, self._left = exchange, trainer, PHASES
        self.under_way = lambda: None

    def pull(self, newest: int = 0):
        return self._exchange.pull(newest)

    def push(self, offer, payload: Path):
        self._trainer.note("send")
        self._left -= 1
        if self._left:
            self.under_way()
            assert self._trainer.expected.acquire(timeout=PATIENCE_S), "nothing is fetched"
        verdict = self._exchange.push(offer, payload)
        self._trainer.note("sent")
        return verdict


@pytest.mark.parametrize("granted", ["in the phase", "while it is sent"])
def test_the_next_windows_are_fetched_while_a_delta_travels(run, ranks, granted) -> None:
    trainer = Noting()
    lone = Lone(run, ranks, trainer=trainer, carrier=lambda exchange: Slow(exchange, trainer))
    session = lone.ends.session
    session._darl = session._darl.model_copy(update={"ahead": True})  # as towards a central
    if granted == "in the phase":
        trainer.on_batch = session._take_ahead  # what a heartbeat does
    else:
        lone.exchange.under_way = session._take_ahead
    lone.train()
    told = [what for what, _, _ in trainer.rows]
    assert told == ["run", "send", "expect", "sent"] * (PHASES - 1) + ["run", "send", "sent"]
    assert all(before <= after for (_, before, _), (_, after, _) in pairwise(trainer.rows))
    fetched = [windows for what, _, windows in trainer.rows if what == "expect"]
    trained = [windows for what, _, windows in trainer.rows if what == "run"]
    assert fetched == trained[1:]


def test_with_overlap_the_next_phase_itself_runs_meanwhile(run, ranks) -> None:
    trainer = Noting()
    lone = Lone(run, ranks, trainer=trainer)
    session = lone.ends.session
    session._darl = session._darl.model_copy(update={"ahead": True})
    trainer.on_batch = session._take_ahead
    lone.train(overlap=True)
    assert [what for what, _, _ in trainer.rows] == ["run"] * PHASES
