"""The cells of a command line as jobs: one array, a task a cell, which leaves what one here leaves.

A cell whose runs are all there is told as it would be here, one that a job in the queue makes is
left to it, and all others are queued; what is finished of them is not made again.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.running import Done
from pww.errors import ConfigError, StateError
from pww.folder import owned
from pww.lab.cells import cell_id
from pww.lab.job import Job
from pww.lab.study import DONE
from pww.launcher import arrays, identity, slurm, submit, waiting
from pww.launcher.batch import Program
from pww.log import read_json_lines

PROGRAM = Program(module="pww.lab.worker", again="the same command")


def queue(jobs: Sequence[Job], *, clock: Clock) -> list[Done]:
    """Queues the cells; with `launcher.wait=true` stays, and says what came out.

    Raises:
        ConfigError: two of them, or one and a job in the queue, would make the same run.
        PwwError: they cannot be queued.
    """
    _a_run_once(jobs)
    left: list[Job] = []
    done: list[Job] = []
    for job in jobs:
        (left if job.left else done).append(job)
    if submit.is_dry([job.config for job in jobs]):
        left = _not_in_the_queue(left)
        arrays.show([*map(_wanted, left)], [job.folder for job in left], program=PROGRAM)
        if there := len(jobs) - len(left):  # those of the queue are no longer among them
            print(f"dry: {there} more cell(s) are there or in the queue already", file=sys.stderr)
        return []
    code = identity.in_short(asdict(identity.current()[0])) if done else ""
    for job in done:
        print(job.carry_out(code=code, clock=clock), flush=True)
    with ExitStack() as held:
        for root in sorted({job.root for job in left}):
            held.enter_context(owned(root, remedy="another launch queues jobs there; wait for it"))
        todo = _not_in_the_queue(left)
        if not todo:
            return [Done(0)]
        queued = arrays.queue([*map(_wanted, todo)], clock=clock, program=PROGRAM)
    if not any(job.config.launcher.wait for job in todo):
        for study in sorted({job.study for job in todo}):
            words = f"study={study.name} root={paths.shown(study.parent)}"
            print(f"when they have ended: python -m pww.lab report {words}", file=sys.stderr)
        print("a job that fails says why in its folder's slurm/JOB_*.log", file=sys.stderr)
        return [Done(0)]
    print("launcher.wait=true: waiting; Ctrl-C leaves the jobs in the queue", file=sys.stderr)
    waiting.until_gone(queued, clock=clock)
    return [Done(_told(job)) for job in queued]


def _wanted(job: Job) -> arrays.Wanted:
    return arrays.Wanted(
        site=job.config.site,
        launcher=job.config.launcher,
        root=job.root,
        claim=partial(_claim, job),
        is_new=not job.folder.exists(),
        about={"cell": cell_id(job.cell), "runs": job.left},
    )


def _claim(job: Job) -> Path:
    try:
        job.write()
    except OSError as why:
        raise StateError(
            f"cannot make the job's folder {paths.shown(job.folder)}: {why}; make room, or give "
            "lab.root=…"
        ) from why
    return job.folder


def _a_run_once(jobs: Sequence[Job]) -> None:
    """Jobs run at the same time, where cells here follow one another."""
    taken: set[Path] = set()
    twice: set[str] = set()
    for job in jobs:
        runs = {job.study / one.name for one in job.plan}
        twice |= {paths.shown(run) for run in runs & taken}
        taken |= runs
    if twice:
        raise ConfigError(
            [f"{run}: several jobs would make this run at once; start one" for run in sorted(twice)]
        )


def _not_in_the_queue(jobs: Sequence[Job]) -> list[Job]:
    """Those that no job makes already, each told where an earlier one of it ended.

    Raises:
        ConfigError: a job makes some of a cell's runs and not all that are left.
    """
    roots = sorted({job.root for job in jobs})
    rows = [row for root in roots for row in read_json_lines(root / arrays.JOBS)]
    live = slurm.queued() if rows else set()
    makes: dict[Path, str] = {}  # by the folder of a run, and of the job
    ended: dict[Path, str] = {}
    for row in rows:
        one, folder, runs = str(row["job"]), Path(str(row["folder"])).resolve(), row["runs"]
        assert isinstance(runs, list), "ours"
        if one in live:
            makes |= {folder: one, **{folder.parents[1] / str(run): one for run in runs}}
        else:
            ended[folder] = one
    todo: list[Job] = []
    faults: list[str] = []
    for job in jobs:
        at = [makes.get(job.study.resolve() / run) for run in job.left]
        ids = sorted({one for one in (*at, makes.get(job.folder.resolve())) if one is not None})
        if not ids:
            todo.append(job)
            if (last := ended.get(job.folder.resolve())) is not None:
                print(_failed(last, job.folder), file=sys.stderr)
        elif None not in at:
            print(f"{cell_id(job.cell)}: job {', '.join(ids)} in the queue makes it", flush=True)
        else:
            faults.append(
                f"{cell_id(job.cell)}: job {', '.join(ids)} in the queue makes some of its runs; "
                f"scancel {' '.join(ids)}, or wait for it"
            )
    if faults:
        raise ConfigError(faults)
    return todo


def _told(job: arrays.Job) -> int:
    """Says what came of a job; its exit code."""
    try:
        print((job.folder / DONE).read_text(), end="", flush=True)
    except FileNotFoundError:
        print(_failed(job.id, job.folder), file=sys.stderr)
        return 1
    return 0


def _failed(job: str, folder: Path) -> str:
    return (
        f"job {job} ended before its cell was done; its last lines are in "
        f"{paths.shown(folder)}/slurm/{job}_*.log, and the same command goes on"
    )
