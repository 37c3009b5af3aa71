"""Errands: calls that may wait for a network for minutes, done one after the other by a thread.

Who gives one away never waits for it. What fails says so itself: nobody is there to catch it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from pww.errors import PwwError

log = logging.getLogger(__name__)


class Errands:
    """One thread, which starts with the first errand. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None

    def give(self, errand: Callable[[], None]) -> None:
        """Adds an errand behind those that are there; after `close` it is dropped."""
        with self._lock:
            if self._closed:
                return
            self._queue.append(errand)
            self._lock.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name=self._name)
                self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether all that was given is done, after `timeout_s` seconds at most."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Ends after what is under way; False if that, or what waited, was not done in time."""
        done = self.wait(timeout_s)
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._lock.notify_all()
        return done

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                errand, self._busy = self._queue.popleft(), True
            try:
                errand()
            except (PwwError, OSError) as why:
                log.error("%s: %s", self._name, why)
            except Exception as why:
                log.exception("%s failed", self._name, exc_info=why)
