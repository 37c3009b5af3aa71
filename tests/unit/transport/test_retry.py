"""Laws of the retry loop, on a clock that the test owns."""

import logging
import math
import threading

import numpy as np
import pytest

from pww.clock import ManualClock
from pww.errors import Stopped, Unreachable
from pww.transport.retry import Retry, TryAgain


class Top:
    """A generator that always draws the upper end, so that pauses are the caps themselves."""

    def uniform(self, low: float, high: float) -> float:
        assert low == 0.0
        return high


def loop(clock: ManualClock, *, random: object = None, **more: float) -> Retry:
    values = {"first_s": 1.0, "max_s": 8.0, **more}
    return Retry(
        "the central at http://x",
        clock=clock,
        stop=threading.Event(),
        random=random or Top(),  # type: ignore[arg-type]
        **values,
    )


class Peer:
    """Fails `failures` times, then answers; remembers when it was called."""

    def __init__(self, clock: ManualClock, failures: float, *, after_s: float = 0.0) -> None:
        self.clock, self.failures, self.after_s = clock, failures, after_s
        self.calls: list[float] = []

    def __call__(self) -> str:
        self.calls.append(self.clock.monotonic())
        if len(self.calls) <= self.failures:
            raise TryAgain("refused", after_s=self.after_s)
        return "answer"


def test_pauses_double_up_to_the_cap() -> None:
    clock = ManualClock()
    peer, retry = Peer(clock, 6), loop(clock)
    assert retry.run(peer, what="acquire") == "answer"
    assert np.diff(peer.calls).tolist() == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert retry.num_retries == 6


def test_jitter_is_uniform_below_the_cap() -> None:
    clock = ManualClock()
    peer = Peer(clock, 2000)
    loop(clock, random=np.random.default_rng(1), first_s=4.0, max_s=4.0).run(peer, what="acquire")
    pauses = np.diff(peer.calls)
    assert pauses.min() >= 0.0
    assert pauses.max() < 4.0
    # Uniform on [0, 4): mean 2, standard error 4 / sqrt(12 * 2000) = 0.026; five of them.
    assert abs(pauses.mean() - 2.0) < 0.13
    assert len(np.unique(pauses)) > 1900


def test_what_the_peer_asks_for_is_a_lower_bound() -> None:
    clock = ManualClock()
    peer = Peer(clock, 3, after_s=5.0)
    loop(clock).run(peer, what="acquire")
    assert np.diff(peer.calls).tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("limit_s", [0.0, 2.5, 100.0])
def test_the_last_try_is_at_the_deadline_and_none_after(limit_s: float) -> None:
    clock = ManualClock()
    peer = Peer(clock, math.inf)
    with pytest.raises(Unreachable, match=rf"no usable answer to acquire within {limit_s:g} s"):
        loop(clock).run(peer, what="acquire", deadline_s=limit_s)
    assert peer.calls[-1] == limit_s
    assert len(peer.calls) >= 1


def test_the_own_deadline_counts_when_none_is_given() -> None:
    clock = ManualClock()
    with pytest.raises(Unreachable, match=r"2 tries; last: refused"):
        loop(clock, deadline_s=1.0).run(Peer(clock, math.inf), what="acquire")


def test_a_stop_ends_the_wait_but_not_the_first_try() -> None:
    clock = ManualClock()
    stop = threading.Event()
    retry = Retry("the central", first_s=1.0, max_s=1.0, clock=clock, stop=stop, random=Top())
    stop.set()
    assert retry.run(Peer(clock, 0), what="leave") == "answer"
    peer = Peer(clock, math.inf)
    with pytest.raises(Stopped, match=r"did not answer to leave \(refused\)"):
        retry.run(peer, what="leave")
    assert len(peer.calls) == 1


def test_other_faults_pass_through_at_once() -> None:
    clock = ManualClock()
    calls = []

    def call() -> None:
        calls.append(1)
        raise KeyError("bug")

    with pytest.raises(KeyError):
        loop(clock).run(call, what="acquire")
    assert calls == [1]


def test_an_outage_speaks_at_once_then_every_ten_seconds_then_when_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    retry = loop(clock, first_s=1.0, max_s=1.0)
    with caplog.at_level(logging.INFO, "pww.transport.retry"):
        retry.run(Peer(clock, 35), what="heartbeat")
        texts = [record.getMessage() for record in caplog.records]
        assert texts == [
            "the central at http://x: no answer to heartbeat (refused); trying again",
            "the central at http://x: away for 10 s (heartbeat: refused)",
            "the central at http://x: away for 20 s (heartbeat: refused)",
            "the central at http://x: away for 30 s (heartbeat: refused)",
            "the central at http://x: works again after 35 s",
        ]
        caplog.clear()
        retry.run(Peer(clock, 0), what="heartbeat")
        assert not caplog.records
