"""`python -m pww.lab.worker JOB`: the cell of the folder JOB, as one job of a site's queue.

What is finished stays, so a job whose time is over asks to be queued again for the rest, unless
not one run was finished in it. Exit codes: 0 all runs are there, 1 a fault (its sentence is the
last line), 130 stopped.
"""

import logging
import signal
import sys
from pathlib import Path

from pww import log as pww_log
from pww.clock import SystemClock
from pww.config import paths
from pww.errors import PwwError
from pww.lab.job import FILE, Job
from pww.launcher import identity

log = logging.getLogger("pww.lab.worker")


def main(argv: list[str]) -> int:
    """Makes what is left of the cell and returns the exit code."""
    if len(argv) != 1 or not Path(argv[0], FILE).is_file():
        print("usage: python -m pww.lab.worker JOB   (a folder that pww.lab made)", file=sys.stderr)
        return 2
    # A run that is cut off is started anew, so that the queue's wish may come at any point
    signal.signal(signal.SIGUSR2, signal.default_int_handler)
    pww_log.setup()
    folder = Path(argv[0]).resolve()
    job = Job.read(folder)
    before = len(job.left)
    try:
        code = identity.recorded(folder)
        made = job.carry_out(code="unknown" if code is None else identity.in_short(code),
                             clock=SystemClock())  # fmt: skip
    except PwwError as fault:
        log.error("%s", fault)
        return fault.exit_code
    except OSError as fault:
        log.error("the cell cannot go on: %s; make room, then the same command goes on", fault)
        return 1
    except KeyboardInterrupt:
        return _out_of_time(job, folder, before)
    print(made, flush=True)
    return 0


def _out_of_time(job: Job, folder: Path, before: int) -> int:
    """Leaves the marker for the batch script, if this job got anywhere."""
    left, queue = len(job.left), job.config.site.queue
    if left == before:
        time = queue.time if queue.kind == "slurm" else "unlimited"
        log.error("not one run was finished in site.queue.time=%s; give more", time)
        return 1
    log.info("the time is over: %d of %d runs are left", left, len(job.plan))
    (folder / paths.REQUEUE).touch()
    return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
