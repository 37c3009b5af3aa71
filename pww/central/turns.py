"""Jobs that several threads bring, done one after the other in the order of their numbers.

Nobody waits for his turn: whoever comes too early leaves his job to the one who is at work, and
does something else. So a thread that the machine has stopped for a moment stops no other.
"""

import threading
from collections.abc import Callable

Job = Callable[[], None]


class Turns:
    """Numbers go from 0 on without gaps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, Job] = {}
        self._next, self._taken = 0, False

    def bring(self, number: int, job: Job) -> None:
        """Has `job` done when all before it are: by this thread, or by one that is at it.

        Raises:
            Exception: what a job raised, which may be another's; no job is done any more.
        """
        with self._lock:
            self._waiting[number] = job
            if self._taken:
                return
            self._taken = True
        while True:
            with self._lock:
                ready = self._waiting.pop(self._next, None)
                if ready is None:
                    self._taken = False
                    return
                self._next += 1
            ready()  # if it raises, the turn stays taken

    @property
    def num_done(self) -> int:
        """How many jobs were done, or are being."""
        with self._lock:
            return self._next
