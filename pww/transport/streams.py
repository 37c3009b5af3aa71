"""Moves numbered pieces over several connections, as many as make it faster, and tells how it goes.

One connection does not fill a long fat pipe: what it may have under way grows back slowly after
each lost packet. On a long way it soon opens all that it may; on a short one it begins with a few
and doubles them while that raises the rate. Each piece is retried by itself. The first fault that
retrying does not mend ends all of them, as does a stop.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from pww.clock import Clock
from pww.errors import Stopped
from pww.transport.carrier import Tuning
from pww.transport.late import Late, Watched
from pww.transport.retry import Retry, TryAgain

log = logging.getLogger(__name__)

TICK_S = 0.05
LONG_WAY_S = 0.02
"""There and back. Finding out by doubling costs such a way seconds at half its rate."""
WINDOW_S = 0.3
"""A rate is measured for so long before connections are added, and after."""
FASTER = 1.15
"""What a doubling must bring, to be followed by another."""
STOPPED = "stopped in the middle of a transfer; it goes on where it was"
SPEAK_AFTER_S, SPEAK_EVERY_S = 3.0, 10.0


class Peer(Watched, Protocol):
    """A connection, as far as it matters here."""

    def drop(self) -> None:
        """Ends it, from its own thread."""

    def abort(self) -> None:
        """Ends what it waits for, from another thread."""

    def round_trip_s(self) -> float:
        """How long its way is, there and back, from another thread; 0 if nobody knows yet."""


P = TypeVar("P", bound=Peer)


class Progress:
    """Counts bytes and tells people the rate and the time that is left. Thread-safe."""

    def __init__(self, what: str, *, total_bytes: int, clock: Clock) -> None:
        """`what` as in "uploading 3f2a…"."""
        self._what, self._total_bytes, self._clock = what, total_bytes, clock
        self._lock = threading.Lock()
        self._aim_bytes, self.moved_bytes = total_bytes, 0
        self._start_s = clock.monotonic()
        self._speak_s = self._start_s + SPEAK_AFTER_S
        self._spoke = False

    def rest(self, num_bytes: int) -> None:
        """So much has still to travel, from now on: the rest is there, or all begins anew."""
        with self._lock:
            self._aim_bytes = self.moved_bytes + num_bytes

    def add(self, num_bytes: int) -> None:
        """Counts bytes that arrived."""
        with self._lock:
            self.moved_bytes += num_bytes

    def speak(self, num_streams: int) -> None:
        """Says how it goes, now and then."""
        now_s = self._clock.monotonic()
        if now_s < self._speak_s:
            return
        self._speak_s, self._spoke = now_s + SPEAK_EVERY_S, True
        rate = self.moved_bytes / max(now_s - self._start_s, 1e-9)
        left_bytes = self._aim_bytes - self.moved_bytes
        left = f"{left_bytes / rate:.0f} s left" if rate > 0 else "nothing arrived yet"
        log.info(
            "%s: %.1f of %.1f MB, %.1f MB/s over %d streams, %s",
            self._what, (self._total_bytes - left_bytes) / 1e6, self._total_bytes / 1e6,
            rate / 1e6, num_streams, left,
        )  # fmt: skip

    def end(self) -> float:
        """Seconds since the start; says the rate of what took long."""
        took_s = self._clock.monotonic() - self._start_s
        if self._spoke:
            log.info("%s: done, %.1f MB in %.1f s", self._what, self.moved_bytes / 1e6, took_s)
        return took_s


class Streams(Generic[P]):
    """The threads of one transfer."""

    def __init__(
        self,
        work: Callable[[P, int], None],
        *,
        connect: Callable[[], P],
        retry: Retry,
        halt: threading.Event,
        progress: Progress,
        tuning: Tuning,
        clock: Clock,
        stop: threading.Event,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`work` moves one piece or raises `TryAgain`; `halt` is the stop of `retry`.

        `meanwhile` is called by the thread that waits: no stream should do anything but move, since
        a connection that rests for a moment has to find its speed again.
        """
        self._work, self._connect, self._retry = work, connect, retry
        self._halt, self._progress, self._tuning = halt, progress, tuning
        self._clock, self._stop, self._meanwhile = clock, stop, meanwhile
        self._lock = threading.Lock()
        self._fault: BaseException | None = None
        self._peers: list[P] = []
        self._late = Late(clock)

    def run(self, pieces: Iterable[int]) -> None:
        """Returns when every piece was moved.

        Raises:
            Stopped: the stop was asked for.
            BaseException: the first that `work` raised and retrying did not mend.
        """
        queue = deque(pieces)
        if self._stop.is_set():
            raise Stopped(STOPPED)
        threads: list[threading.Thread] = []
        ended = threading.Semaphore(0)  # one for each thread that is over

        def stream(peer: P) -> None:
            try:
                while not self._halt.is_set():
                    try:
                        number = queue.popleft()
                    except IndexError:
                        break
                    self._retry.run(lambda: self._move(peer, number), what=f"piece {number}")  # noqa: B023
            except BaseException as fault:
                self._fail(fault)
            finally:
                peer.drop()
                ended.release()

        def add(count: int) -> None:
            for _ in range(min(count, len(queue))):
                peer = self._connect()
                self._peers.append(peer)
                name = f"blob-stream-{len(threads)}"
                threads.append(
                    threading.Thread(target=stream, args=(peer,), daemon=True, name=name)
                )
                threads[-1].start()

        add(self._tuning.min_streams)
        grow = _Growth(self._tuning, self._clock)
        over = 0
        try:
            while over < len(threads):
                if ended.acquire(timeout=TICK_S):
                    over += 1
                if self._stop.is_set():
                    self._abort()
                elif not self._halt.is_set():
                    known = [peer.round_trip_s() for peer in self._peers]
                    way_s = min(filter(None, known), default=0.0)
                    add(grow.more(len(threads), self._progress.moved_bytes, way_s))
                    self._progress.speak(len(threads) - over)
                    if not queue:
                        self._late.interrupt()
                    self._meanwhile()
        finally:
            self._abort()
            for thread in threads:
                thread.join()
        if self._stop.is_set() and (self._fault is not None or queue):
            raise Stopped(STOPPED)
        if self._fault is not None:
            raise self._fault

    def _move(self, peer: P, number: int) -> None:
        """Moves a piece, and begins it again at once if it was late."""
        flight = self._late.begin(peer)
        try:
            self._work(peer, number)
        except TryAgain as why:
            self._late.end(flight, moved=False)
            if not flight.interrupted or why.after_s or self._halt.is_set():
                raise
            self._retry.count()
            self._work(peer, number)
        except BaseException:
            self._late.end(flight, moved=False)
            raise
        else:
            self._late.end(flight, moved=True)

    def _fail(self, fault: BaseException) -> None:
        with self._lock:
            if self._fault is None:
                self._fault = fault
        self._abort()

    def _abort(self) -> None:
        """Ends what the streams wait for."""
        self._halt.set()
        for peer in list(self._peers):
            peer.abort()


class _Growth:
    """Decides when more connections are worth a try."""

    def __init__(self, tuning: Tuning, clock: Clock) -> None:
        self._max, self._clock = tuning.max_streams, clock
        self._best = 0.0  # bytes a second before the last doubling
        self._since_s, self._since_bytes = clock.monotonic(), 0
        self._settling = True  # what was just opened is not yet at its speed

    def more(self, num_streams: int, moved_bytes: int, way_s: float) -> int:
        """How many to add now; `way_s` is a round trip, 0 if not known."""
        if math.isinf(self._best):
            return 0
        if way_s >= LONG_WAY_S:
            self._best = math.inf
            return self._max - num_streams
        now_s = self._clock.monotonic()
        took_s = now_s - self._since_s
        if took_s < WINDOW_S:
            return 0
        rate = (moved_bytes - self._since_bytes) / took_s
        self._since_s, self._since_bytes = now_s, moved_bytes
        if self._settling:
            self._settling = False
            return 0
        if rate < FASTER * self._best or num_streams >= self._max:
            self._best = math.inf  # it is what the link gives
            return 0
        self._best, self._settling = rate, True
        return min(num_streams, self._max - num_streams)
