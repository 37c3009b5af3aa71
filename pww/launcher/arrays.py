"""Jobs for a queue: one array for each distinct allocation, one folder a job.

Whatever a job does, it is asked for here: `pww.train` queues runs, `pww.lab` the cells of a study.
What was queued is noted in ROOT/jobs.jsonl, a line a job; the script of an array lies in its first
job's folder, `slurm/script.sh`, and the code that it runs below ROOT/code.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Launcher, Site
from pww.errors import PwwError, StateError
from pww.launcher import batch, identity, slurm

JOBS = "jobs.jsonl"
SHOWN = 10
"""More jobs than this are named in jobs.jsonl only."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job in the queue."""

    id: str  # 12, or 12_3 in an array
    folder: Path


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that somebody wants queued."""

    site: Site
    launcher: Launcher
    root: Path  # of its folder, of jobs.jsonl, of the code; absolute
    claim: Callable[[], Path]  # makes its folder, with all that the job reads
    is_new: bool  # its folder goes again where Slurm refuses it
    about: Mapping[str, object] = field(default_factory=dict)  # more for its line in jobs.jsonl


def queue(
    wanted: Sequence[Wanted], *, clock: Clock, program: batch.Program = batch.TRAIN
) -> list[Job]:
    """Queues every job; those that are returned are in the order of `wanted`.

    Raises:
        StateError: Slurm refused an array; folders that were made for it are gone again. Or it was
            queued and could not be noted, or nobody knows: then they stay.
    """
    groups = allocations(wanted, longest=slurm.longest_array())  # asked before anything is made
    code, diff = identity.current()
    jobs: dict[int, Job] = {}
    for group in groups:
        first = wanted[group[0]]
        kept = identity.keep(code, first.root)
        folders: list[Path] = []
        fresh: list[Path] = []
        try:
            for number in group:
                folder = wanted[number].claim()
                folders.append(folder)
                if wanted[number].is_new:
                    fresh.append(folder)
                if said := identity.freeze(code, diff, folder):
                    print(f"{paths.shown(folder)}: {said}", file=sys.stderr)
            ids = _array(first, folders, kept, program)
        except slurm.UnansweredError:
            raise  # its jobs would start without their folders
        except PwwError:
            for folder in fresh:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for number, one, folder in zip(group, ids, folders, strict=True):
            jobs[number] = Job(one, folder)
        _say(first, folders, ids)
        for number in group:
            _note(wanted[number], jobs[number], code, clock)
    return [jobs[number] for number in range(len(wanted))]


def show(
    wanted: Sequence[Wanted], folders: Sequence[Path], *, program: batch.Program = batch.TRAIN
) -> None:
    """Prints every script that `queue` would give to sbatch; makes and changes nothing."""
    code, _ = identity.current()
    for group in allocations(wanted, longest=max(1, len(wanted))):
        first = wanted[group[0]]
        print(
            batch.script(
                first, runs=[folders[number] for number in group],
                code=identity.kept_in(code, first.root), program=program,
            )
        )  # fmt: skip
        print(f"dry: nothing was queued. {batch.summary(first, jobs=len(group))}", file=sys.stderr)


def allocations(wanted: Sequence[Wanted], *, longest: int) -> list[list[int]]:
    """Indices of those that want the same of the queue, at most `longest` together, in order."""
    groups: dict[str, list[int]] = {}
    for number, one in enumerate(wanted):
        key = one.site.model_dump_json() + one.launcher.model_dump_json() + str(one.root)
        groups.setdefault(key, []).append(number)
    return [
        group[start : start + longest]
        for group in groups.values()
        for start in range(0, len(group), longest)
    ]


def _array(
    wanted: Wanted, folders: Sequence[Path], code: Path, program: batch.Program
) -> list[str]:
    """Gives the array to sbatch; the ids of its tasks."""
    text = batch.script(wanted, runs=folders, code=code, program=program)
    try:
        (folders[0] / "slurm").mkdir(exist_ok=True)
        script = folders[0] / "slurm" / "script.sh"
        script.write_text(text)
    except OSError as why:
        raise StateError(f"cannot write the batch script: {why}; make room") from why
    job = slurm.sbatch(script)
    return [job] if len(folders) == 1 else [f"{job}_{task}" for task in range(len(folders))]


def _note(wanted: Wanted, job: Job, code: identity.Code, clock: Clock) -> None:
    """One line in one write: several launches may note at once.

    Raises:
        StateError: it cannot be written.
    """
    queue = batch.queue_of(wanted)
    line = {
        "job": job.id,
        "run": job.folder.name,
        "folder": str(job.folder),
        **wanted.about,
        "partition": queue.partition,
        "nodes": wanted.site.num_nodes,
        "ranks": batch.ranks_of(wanted),
        "time": queue.time,
        "code": code.digest,
        "commit": code.commit,
        "submitted": datetime.fromtimestamp(clock.wall()).isoformat(timespec="seconds"),
    }
    try:
        handle = os.open(wanted.root / JOBS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)
    except OSError as why:
        raise StateError(
            f"job {job.id} is queued, but cannot be noted in {wanted.root / JOBS}: {why}; make "
            "room before another launch"
        ) from why


def _say(wanted: Wanted, folders: Sequence[Path], ids: Sequence[str]) -> None:
    for folder, one in list(zip(folders, ids, strict=True))[:SHOWN]:
        print(f"job {one}: {paths.shown(folder)}")
    where = paths.shown(wanted.root / JOBS)
    more = f", {len(ids) - SHOWN} more in {where}" if len(ids) > SHOWN else ""
    print(f"queued{more}: {batch.summary(wanted, jobs=len(ids))}", file=sys.stderr)
