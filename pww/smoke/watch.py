"""Every stage of a smoke test has a bound: a rank that hangs makes it fail, with where it hung.

A thread of each rank, since what hangs is a collective that nobody can interrupt. Who has not come
to the end of a stage in time says where it is, waits a moment for the others to do so too, and ends
its process: the launcher, srun or torch's, then ends those that could not.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pww.clock import Clock
from pww.smoke.book import note_fault

BOUNDS_S = {
    "meeting": 300.0,  # the slowest node's imports
    "devices": 60.0,
    "all-reduce": 120.0,  # the first collective sets up its connections
    "bandwidth": 120.0,
    "replicas": 120.0,
    "checkpoint": 120.0,
    "data": 1800.0,  # a corpus that is not there yet is tokenised
    "engine": 900.0,
    "training": 1200.0,  # the first step tunes kernels
    "ending": 60.0,
}
"""What nothing that works takes as long as."""
MOMENT_S = 3.0
TICK_S = 0.2


class Watch:
    """The bound of one rank's present stage; build it in the thread that does the work."""

    def __init__(
        self, run: Path, rank: int, *, clock: Clock, end: Callable[[int], None] = os._exit
    ) -> None:
        self._run, self._rank, self._clock, self._end = run, rank, clock, end
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._stage, self._since_s = "meeting", clock.monotonic()
        threading.Thread(target=self._look, daemon=True, name="watch").start()

    @property
    def stage(self) -> str:
        """What is being done."""
        return self._stage

    def now(self, stage: str) -> None:
        """A stage has ended well, and this one begins."""
        with self._lock:
            self._stage, self._since_s = stage, self._clock.monotonic()

    def close(self) -> None:
        """Nothing is bound any more."""
        self._over.set()

    def _look(self) -> None:
        while not self._clock.wait(self._over, TICK_S):
            with self._lock:
                stage, bound_s = self._stage, BOUNDS_S[self._stage]
                late = self._clock.monotonic() - self._since_s > bound_s
            if late:
                frame = sys._current_frames().get(self._thread)
                where = _innermost(frame)
                note_fault(
                    self._run, str(self._rank),
                    f"{stage}: rank {self._rank} was not through after {bound_s:g} s, it is at "
                    f"{where}",
                )  # fmt: skip
                traceback.print_stack(frame, file=sys.stderr)
                if not self._clock.wait(self._over, MOMENT_S):
                    sys.stderr.flush()
                    self._end(1)
                return


def _innermost(frame: FrameType | None) -> str:
    if frame is None:
        return "no place that is known"
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} ({code.co_name})"
