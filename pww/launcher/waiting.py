"""Stays until queued runs have ended, and says how: `launcher.wait=true`, optimising sweepers.

What counts is the run's own folder, since a job that Slurm forgot tells nothing: a run that is
complete has its `finished`, whatever happened on the way.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pww.clock import Clock
from pww.config import paths
from pww.errors import StateError
from pww.launcher import slurm
from pww.launcher.arrays import Job
from pww.log import read_json_lines

FIRST_S, LAST_S = 0.5, 30.0
"""Pauses between two looks at the queue grow from the one to the other: others use it too."""
SILENT_S = 600.0
"""A scheduler that restarts is back by then."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one job ended."""

    job: Job
    finished: bool
    objective: float  # held-out loss of the last theta; nan if there is none

    @property
    def sentence(self) -> str:
        """What to tell a person; "" if there is nothing to tell."""
        if self.finished:
            return ""
        folder = paths.shown(self.job.folder)
        return (
            f"job {self.job.id} ended before its run was finished; its ranks' last lines are in "
            f"{folder}/slurm/{self.job.id}_*.log, and resume={folder} goes on"
        )


def wait(jobs: Sequence[Job], *, clock: Clock) -> list[Outcome]:
    """How each job's run ended, once none of them is in the queue.

    Raises:
        StateError: Slurm has not answered for long; the jobs go on.
    """
    until_gone(jobs, clock=clock)
    return [_outcome(job) for job in jobs]


def until_gone(jobs: Sequence[Job], *, clock: Clock) -> None:
    """Returns once none of the jobs is in the queue. A job that is requeued is in it.

    Raises:
        StateError: Slurm has not answered for long; the jobs go on.
    """
    never = threading.Event()
    pause, heard = FIRST_S, clock.monotonic()
    left = {job.id for job in jobs}
    while left:
        try:
            left &= slurm.queued()
            heard = clock.monotonic()
        except StateError:
            if clock.monotonic() - heard > SILENT_S:
                raise
        if left:
            clock.wait(never, pause)
            pause = min(pause * 1.5, LAST_S)


def _outcome(job: Job) -> Outcome:
    finished = (job.folder / paths.FINISHED).exists()
    found = math.nan
    for row in read_json_lines(job.folder / "metrics.jsonl"):
        loss = row.get("loss")
        if row.get("split") == "eval" and isinstance(loss, int | float):
            found = float(loss)
    return Outcome(job, finished, found)
