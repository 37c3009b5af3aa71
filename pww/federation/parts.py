"""How a message gets on, for people: Flower cuts it into parts of some megabytes and is silent."""

import logging
import threading

from pww.clock import Clock
from pww.transport.streams import SPEAK_AFTER_S, SPEAK_EVERY_S

log = logging.getLogger(__name__)


class Parts:
    """Counts the parts of one message that arrived. Thread-safe."""

    def __init__(self, what: str, *, total: int, clock: Clock) -> None:
        """`what` as in "receiving an instruction"."""
        self._what, self._total, self._clock = what, total, clock
        self._lock = threading.Lock()
        self._num = self._num_bytes = 0
        self._start_s = clock.monotonic()
        self._speak_s = self._start_s + SPEAK_AFTER_S

    def add(self, num_bytes: int) -> None:
        """One more; says now and then how far it is."""
        with self._lock:
            self._num, self._num_bytes = self._num + 1, self._num_bytes + num_bytes
            now_s = self._clock.monotonic()
            if now_s < self._speak_s:
                return
            self._speak_s = now_s + SPEAK_EVERY_S
            took_s = max(now_s - self._start_s, 1e-9)
            log.info(
                "%s: part %d of %d, %.1f MB/s, %.0f s left", self._what, self._num, self._total,
                self._num_bytes / took_s / 1e6, took_s / self._num * (self._total - self._num),
            )  # fmt: skip
