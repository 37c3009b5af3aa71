"""The only clock of pww: durations come from `monotonic`, labels for people from `wall`.

Everything that waits takes a `Clock`, so that a test can own time. Wall clocks are never compared
between machines, and no deadline is ever derived from one.
"""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What code may know of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall(self) -> float:
        """Seconds since 1970; for labels only, may jump."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """True as soon as `event` is set, False after `timeout_s` seconds."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970; for labels only, may jump."""
        return time.time()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """True as soon as `event` is set, False after `timeout_s` seconds."""
        return event.wait(timeout_s)


class ManualClock:
    """A clock that moves only when told to: `wait` and `advance` move it, nothing sleeps."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._wall_offset = 1.0e9

    def monotonic(self) -> float:
        """The seconds that this clock was advanced to."""
        return self._now

    def wall(self) -> float:
        """Like `monotonic`, from a fixed date, plus every `jump_wall`."""
        return self._wall_offset + self._now

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Advances by `timeout_s` unless `event` is set already."""
        if not event.is_set():
            self.advance(timeout_s)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Moves time forward."""
        self._now += seconds

    def jump_wall(self, seconds: float) -> None:
        """Steps the wall clock alone, as an operator or NTP would."""
        self._wall_offset += seconds
