"""Parallel streams: every piece once, growth while it pays, ends at once on a fault or a stop."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pww.clock import ManualClock, SystemClock
from pww.errors import PayloadError, Stopped, Unreachable
from pww.transport.carrier import Tuning
from pww.transport.retry import Retry, TryAgain
from pww.transport.streams import FASTER, LONG_WAY_S, WINDOW_S, Progress, Streams, _Growth

FEW = Tuning(min_streams=3, max_streams=3, retry_first_s=0.001, retry_max_s=0.002, deadline_s=5.0)


class Peer:
    """What a stream needs of a connection."""

    def __init__(self) -> None:
        self.aborted = threading.Event()

    def drop(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted.set()

    def interrupt(self) -> bool:
        self.aborted.set()
        return True

    def moved(self) -> float:
        return 0.0

    def round_trip_s(self) -> float:
        return 0.0


def streams(work: Callable[[Any, int], None], *, tuning: Tuning = FEW,
            stop: threading.Event | None = None) -> Streams:  # fmt: skip
    clock, halt = SystemClock(), threading.Event()
    retry = Retry(
        "the store", first_s=tuning.retry_first_s, max_s=tuning.retry_max_s, clock=clock, stop=halt,
        random=np.random.default_rng(0), deadline_s=tuning.deadline_s,
    )  # fmt: skip
    return Streams(
        work, connect=Peer, retry=retry, halt=halt,  # type: ignore[arg-type]
        progress=Progress("moving", total_bytes=1, clock=clock), tuning=tuning, clock=clock,
        stop=stop or threading.Event(),
    )  # fmt: skip


def test_every_piece_once() -> None:
    moved: list[int] = []
    failed: set[int] = set()

    def work(peer: Peer, number: int) -> None:
        if number % 7 == 0 and number not in failed:
            failed.add(number)
            raise TryAgain("not yet")
        moved.append(number)

    streams(work).run(range(100))
    assert sorted(moved) == list(range(100))


def test_no_piece_no_thread() -> None:
    streams(lambda peer, number: pytest.fail("nothing to move")).run([])


def test_first_fault_ends_all() -> None:
    """Streams that wait for their sockets are woken; what had begun is not waited for."""

    def work(peer: Peer, number: int) -> None:
        if number == 2:
            raise PayloadError("damaged")
        assert peer.aborted.wait(10.0)
        raise TryAgain("its connection was ended")

    with pytest.raises(PayloadError, match="damaged"):
        streams(work).run(range(50))


def test_deadline() -> None:
    def work(peer: Peer, number: int) -> None:
        raise TryAgain("no route")

    with pytest.raises(Unreachable, match=r"the store gave no usable answer to piece \d within"):
        streams(work, tuning=replace(FEW, deadline_s=0.02)).run(range(5))


def test_stop_wakes_all() -> None:
    stop = threading.Event()

    def work(peer: Peer, number: int) -> None:
        if number == 2:
            stop.set()
        assert peer.aborted.wait(10.0)
        raise TryAgain("its connection was ended")

    with pytest.raises(Stopped, match="stopped in the middle of a transfer"):
        streams(work, stop=stop).run(range(5))


def test_own_bug_is_not_hidden() -> None:
    def work(peer: Peer, number: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        streams(work).run(range(5))


def test_late_piece_begins_again_without_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    """It is no outage: nobody reads of it, and it does not count against the deadline."""
    tries: list[int] = []

    def work(peer: Peer, number: int) -> None:
        tries.append(number)
        if number == 9 and tries.count(9) == 1:
            assert peer.aborted.wait(10.0)
            raise TryAgain("its connection was ended")

    moving = streams(work, tuning=replace(FEW, retry_first_s=60.0, retry_max_s=60.0))
    moving.run(range(10))
    assert sorted(tries) == [*range(10), 9]
    assert moving._retry.num_retries == 1
    assert not caplog.messages


def grown(rate: Callable[[int], float], *, most: int = 16, way_s: float = 0.0) -> int:
    """How many streams it ends with on a link that gives `rate(streams)` bytes a second."""
    clock = ManualClock()
    growth = _Growth(Tuning(min_streams=4, max_streams=most), clock)
    num_streams, moved = 4, 0.0
    for _ in range(100):
        clock.advance(WINDOW_S / 4)
        moved += rate(num_streams) * WINDOW_S / 4
        num_streams += growth.more(num_streams, int(moved), way_s)
    return num_streams


def test_growth() -> None:
    """As many streams as the link rewards: a law of each link, not a constant."""
    assert grown(lambda n: 10e6) == 8, "a link that one fills: one doubling was in vain"
    assert grown(lambda n: n * 10e6) == 16, "a link that each stream adds to: all that may be"
    assert grown(lambda n: min(n, 8) * 10e6) == 16, "one doubling too many tells that it is enough"
    assert grown(lambda n: n * 10e6, most=6) == 6
    assert grown(lambda n: 10e6 * (FASTER - 0.01) ** np.log2(n)) == 8, "hardly faster is not enough"


def test_a_long_way_gets_all_connections_at_once() -> None:
    growth = _Growth(Tuning(min_streams=4, max_streams=16), ManualClock())
    ways_s = (0.0, LONG_WAY_S / 2, LONG_WAY_S, LONG_WAY_S)
    assert [growth.more(4, 0, way_s) for way_s in ways_s] == [0, 0, 12, 0]
    assert grown(lambda n: 10e6, way_s=LONG_WAY_S / 2) == 8, "a short one is asked as before"


def test_the_way_is_as_long_as_its_shortest_round_trip() -> None:
    """What a connection measured while it was crowded says nothing; nor one that is not there."""
    ways_s, together = iter([0.0, 3 * LONG_WAY_S, 2 * LONG_WAY_S]), threading.Barrier(5)

    class Far(Peer):
        def __init__(self) -> None:
            super().__init__()
            self.way_s = next(ways_s, 0.0)

        def round_trip_s(self) -> float:
            return self.way_s

    moving = streams(
        lambda peer, number: (together.wait(10.0), None)[1],
        tuning=replace(FEW, max_streams=5),
    )
    moving._connect = Far
    moving.run(range(5))  # five at once, or it breaks


@pytest.fixture
def speaking(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO):
        yield caplog


def test_progress(speaking: pytest.LogCaptureFixture) -> None:
    """Rate and time left, of what has still to travel; nothing of what is short."""
    clock = ManualClock()
    progress = Progress("uploading x", total_bytes=100_000_000, clock=clock)
    progress.rest(80_000_000)  # 20 MB were there
    progress.speak(4)
    clock.advance(2.0)
    progress.speak(4)
    assert not speaking.messages
    progress.add(20_000_000)
    clock.advance(2.0)
    progress.speak(4)
    clock.advance(1.0)
    progress.speak(4)
    assert speaking.messages == [
        "uploading x: 40.0 of 100.0 MB, 5.0 MB/s over 4 streams, 12 s left"
    ]
    progress.rest(100_000_000)  # all anew
    clock.advance(9.0)
    progress.speak(2)
    assert speaking.messages[1].startswith("uploading x: 0.0 of 100.0 MB")
    assert progress.end() == 14.0
    assert speaking.messages[2] == "uploading x: done, 20.0 MB in 14.0 s"


def test_progress_of_nothing(speaking: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    progress = Progress("uploading x", total_bytes=10, clock=clock)
    clock.advance(5.0)
    progress.speak(1)
    assert "nothing arrived yet" in speaking.text
