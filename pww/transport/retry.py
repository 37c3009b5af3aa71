"""THE retry loop: capped exponential backoff with full jitter, a deadline, a stop, and a voice.

A call says that trying again may help by raising `TryAgain`; everything else that it raises goes
straight through. One `Retry` belongs to one peer: its threads share the log lines of an outage, so
a person reads one line when the peer goes away, one about every ten seconds while it stays away,
and one when it is back. Full jitter (uniform in [0, cap]) keeps many sites that lost one central
from coming back in step. Source: Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
"""

import logging
import math
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from pww.clock import Clock
from pww.errors import Stopped, Unreachable

log = logging.getLogger(__name__)

T = TypeVar("T")
SPEAK_EVERY_S = 10.0


class TryAgain(Exception):
    """The call failed in a way that may pass. `after_s`: the peer asked not to be called sooner."""

    def __init__(self, reason: str, *, after_s: float = 0.0) -> None:
        self.reason = reason
        self.after_s = after_s
        super().__init__(reason)


class Uniform(Protocol):
    """The part of a random generator that jitter needs; `numpy.random.Generator` has it."""

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high)."""


class Retry:
    """Calls one peer until it answers. Thread-safe; `num_retries` counts the repeats."""

    def __init__(
        self,
        peer: str,
        *,
        first_s: float,
        max_s: float,
        clock: Clock,
        stop: threading.Event,
        random: Uniform,
        deadline_s: float = math.inf,
    ) -> None:
        """`peer` is how a person calls the other side ("the central at http://...")."""
        self._peer = peer
        self._first_s, self._max_s, self._deadline_s = first_s, max_s, deadline_s
        self._clock, self._stop, self._random = clock, stop, random
        self._lock = threading.Lock()
        self._away_since = math.inf  # start of the outage that is being reported; inf: none
        self._spoke_s = 0.0
        self.num_retries = 0

    def run(
        self,
        call: Callable[[], T],
        *,
        what: str,
        deadline_s: float = -1.0,
        moved_s: Callable[[], float] = lambda: -math.inf,
    ) -> T:
        """The first result of `call`. It is always tried once, even when a stop was asked for.

        Args:
            call: what to do; raises `TryAgain` when it may be repeated.
            what: names the call in messages, as in "heartbeat".
            deadline_s: how long to go on; negative: the deadline of this `Retry`.
            moved_s: when the call last got on, by the clock; the deadline counts from then, so that
                it bounds how long nothing moves and not how long a large thing takes.

        Raises:
            Unreachable: no answer within the deadline.
            Stopped: the stop was asked for while waiting for the next try.
        """
        limit_s = self._deadline_s if deadline_s < 0 else deadline_s
        start_s = self._clock.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                result = call()
            except TryAgain as fault:
                self._failed(what, fault.reason)
                left_s = max(start_s, moved_s()) + limit_s - self._clock.monotonic()
                if left_s <= 0:
                    raise Unreachable(
                        f"{self._peer} gave no usable answer to {what} within {limit_s:g} s "
                        f"({tries} tries; last: {fault.reason}): check that it runs and that this "
                        "machine reaches it"
                    ) from fault
                pause_s = min(max(self._pause(tries), fault.after_s), left_s)
                if self._clock.wait(self._stop, pause_s):
                    raise Stopped(
                        f"stopped while {self._peer} did not answer to {what} ({fault.reason})"
                    ) from fault
                self.count()
            else:
                self._worked()
                return result

    def count(self) -> None:
        """One more repeat."""
        with self._lock:
            self.num_retries += 1

    def _pause(self, tries: int) -> float:
        """Full jitter: uniform below a cap that doubles from `first_s` to `max_s`."""
        doublings = min(tries - 1, 60)
        return float(self._random.uniform(0.0, min(self._max_s, self._first_s * 2.0**doublings)))

    def _failed(self, what: str, reason: str) -> None:
        """Speaks at the first failure of an outage and then every `SPEAK_EVERY_S`."""
        now_s = self._clock.monotonic()
        with self._lock:
            first = math.isinf(self._away_since)
            if first:
                self._away_since = now_s
            elif now_s - self._spoke_s < SPEAK_EVERY_S:
                return
            self._spoke_s = now_s
            away_s = now_s - self._away_since
        if first:
            log.warning("%s: no answer to %s (%s); trying again", self._peer, what, reason)
        else:
            log.warning("%s: away for %.0f s (%s: %s)", self._peer, away_s, what, reason)

    def _worked(self) -> None:
        """Ends an outage, if there was one."""
        with self._lock:
            away_s = self._clock.monotonic() - self._away_since
            was_away = not math.isinf(self._away_since)
            self._away_since = math.inf
        if was_away:
            log.info("%s: works again after %.0f s", self._peer, away_s)
