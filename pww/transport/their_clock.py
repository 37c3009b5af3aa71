"""The central's clock as seen from here: measured from its answers, so that a wrong clock does no
harm.

Every answer carries the central's time in its Date header. What is signed for the central is dated
by that clock; the error of this machine's is named once in the log.
"""

import logging
import math
import threading
from email.utils import parsedate_to_datetime

from pww.clock import Clock

log = logging.getLogger(__name__)
TOLERATED_S = 3.0
"""A Date header has whole seconds and is as old as the way back: less than this is no fault."""


class TheirClock:
    """Wall time of the central. Thread-safe; all connections to one central share it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.offset_s = 0.0
        """What is added to this machine's wall clock."""

    def now_s(self) -> float:
        """Seconds since 1970 at the central, as far as is known."""
        return self._clock.wall() + self.offset_s

    def asked_s(self) -> float:
        """When a request goes out, for `measure`."""
        return self._clock.monotonic()

    def measure(self, date: str, *, asked_s: float) -> None:
        """Follows the Date header of an answer when the time is off by more than is tolerated.

        The header is from some moment since the request was sent (`asked_s`): a central that was
        held up for a minute may date its answer a minute ago, and no clock is wrong.
        """
        try:
            theirs = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        with self._lock:
            ahead_s = self._clock.wall() + self.offset_s - theirs
            took_s = max(0.0, self._clock.monotonic() - asked_s)
            if ahead_s > 0:  # by so much at the most
                ahead_s = max(0.0, ahead_s - took_s)
            if abs(ahead_s) <= TOLERATED_S:
                return
            self.offset_s -= ahead_s
            offset_s = self.offset_s
        word = "ahead of" if offset_s < 0 else "behind"
        log.warning(
            "this machine's clock is %.0f s %s the central's; corrected here, but NTP should do it",
            math.fabs(offset_s), word,
        )  # fmt: skip
