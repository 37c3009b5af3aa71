"""Whether the jobs that train a run one after the other get anywhere.

A job that its queue stops drops the phase that was under way. Where a phase takes longer than a
job's time, every job would begin the same phase again until no requeue is left: after LIVES jobs
without a phase that was finished the run does not queue itself again.

    RUN/lives.json   the newest checkpoint when the last job began, and how many began there
"""

import json
from pathlib import Path

from pww.errors import StateError
from pww.folder import write_durably

FILE = "lives.json"
LIVES = 3
"""Jobs that may begin at one checkpoint: a job can be short for other reasons, once or twice."""


def begin(run: Path) -> None:
    """Counts the life that begins; only the owner of the run's folder calls it.

    Raises:
        StateError: the folder cannot be written.
    """
    here = _newest(run)
    before, count = _read(run)
    row = {"checkpoint": here, "lives": count + 1 if before == here else 1}
    try:
        write_durably(run / FILE, json.dumps(row).encode())
    except OSError as why:
        raise StateError(f"cannot write {run / FILE}: {why}; make room, then resume it") from why


def is_stuck(run: Path) -> bool:
    """Whether this life and those before it ended where they began. Any rank may ask."""
    before, count = _read(run)
    return count >= LIVES and before == _newest(run)


def _newest(run: Path) -> str:
    """The newest checkpoint's name; "" before the first."""
    return max((path.name for path in run.glob("checkpoints/phase-??????")), default="")


def _read(run: Path) -> tuple[str | None, int]:
    try:
        row = json.loads((run / FILE).read_text())
        return str(row["checkpoint"]), int(row["lives"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, 0
