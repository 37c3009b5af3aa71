"""Runs of a site with a queue: one array for each distinct allocation, one run folder a job.

Everything is checked before the first folder is made. What was queued is noted in
ROOT/jobs.jsonl, a line a job, and goes on by itself; `launcher.wait=true` stays until the last has
ended. The script of an array lies in its first run's folder, `slurm/script.sh`.
"""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config, Slurm
from pww.errors import ConfigError, PwwError, StateError
from pww.launcher import batch, identity, runs, slurm
from pww.log import read_json_lines

JOBS = "jobs.jsonl"
SHOWN = 10
"""More jobs than this are named in jobs.jsonl only."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run in the queue."""

    id: str  # 12, or 12_3 in an array
    folder: Path


def submit(
    configs: Sequence[Config], *, clock: Clock, program: batch.Program = batch.TRAIN
) -> list[Job]:
    """Queues every run; the jobs are in the order of `configs`.

    Raises:
        ConfigError: two of them want one folder, or one is in the queue already.
        StateError: Slurm refused an array; folders that were made for it are gone again. Or it was
            queued and could not be noted, or nobody knows: then they stay.
    """
    _one_folder_each(configs)
    _not_queued_already(configs)
    groups = allocations(configs, longest=slurm.longest_array())  # asked before anything is made
    code, diff = identity.current()
    kept = identity.keep(code, _root(configs[0]))
    jobs: dict[int, Job] = {}
    for group in groups:
        ready: list[tuple[Config, Path]] = []
        fresh: list[Path] = []
        try:
            for number in group:
                config = configs[number]
                ready.append(runs.claim(config, clock))
                if config.resume in (runs.NONE, runs.AUTO):
                    fresh.append(ready[-1][1])
                if said := identity.freeze(code, diff, ready[-1][1]):
                    print(f"{paths.shown(ready[-1][1])}: {said}", file=sys.stderr)
            ids = _queue(ready, kept, program)
        except slurm.UnansweredError:
            raise  # its jobs would start without their folders
        except PwwError:
            for folder in fresh:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for number, one, (_, folder) in zip(group, ids, ready, strict=True):
            jobs[number] = Job(one, folder)
        _say(ready, ids)
        for number in group:
            _note(configs[number], jobs[number], code, clock)
    return [jobs[number] for number in range(len(configs))]


def show(configs: Sequence[Config], *, clock: Clock, program: batch.Program = batch.TRAIN) -> None:
    """Prints every script that `submit` would give to sbatch; makes and changes nothing."""
    _one_folder_each(configs)
    code, _ = identity.current()
    taken: set[str] = set()
    named = []
    for config in configs:
        one = runs.named(config, clock)
        name, number = one.run.name, 1
        while name in taken:
            number += 1
            name = f"{one.run.name}-{number}"
        taken.add(name)
        named.append(one.model_copy(update={"run": one.run.model_copy(update={"name": name})}))
    for group in allocations(named, longest=len(named)):
        first = named[group[0]]
        queue = _queue_of(first)
        folders = [_folder(named[number]) for number in group]
        kept = identity.kept_in(code, _root(first))
        print(batch.script(first, queue, runs=folders, code=kept, program=program))
        print(
            f"dry: nothing was queued. {batch.summary(first, queue, jobs=len(group))}",
            file=sys.stderr,
        )


def allocations(configs: Sequence[Config], *, longest: int) -> list[list[int]]:
    """Indices of those that want the same of the queue, at most `longest` together, in order."""
    groups: dict[str, list[int]] = {}
    for number, config in enumerate(configs):
        key = config.site.model_dump_json() + config.launcher.model_dump_json() + config.run.root
        groups.setdefault(key, []).append(number)
    return [
        group[start : start + longest]
        for group in groups.values()
        for start in range(0, len(group), longest)
    ]


def _queue(ready: Sequence[tuple[Config, Path]], code: Path, program: batch.Program) -> list[str]:
    """Gives the array to sbatch; the ids of its tasks."""
    config, folder = ready[0]
    text = batch.script(
        config, _queue_of(config), runs=[f for _, f in ready], code=code, program=program
    )
    try:
        (folder / "slurm").mkdir(exist_ok=True)
        script = folder / "slurm" / "script.sh"
        script.write_text(text)
    except OSError as why:
        raise StateError(f"cannot write the batch script: {why}; make room") from why
    job = slurm.sbatch(script)
    return [job] if len(ready) == 1 else [f"{job}_{task}" for task in range(len(ready))]


def _note(config: Config, job: Job, code: identity.Code, clock: Clock) -> None:
    """One line in one write: several launches may note at once.

    Raises:
        StateError: it cannot be written.
    """
    line = {
        "job": job.id,
        "run": job.folder.name,
        "folder": str(job.folder),
        "replica": config.replica_id,
        "partition": _queue_of(config).partition,
        "nodes": config.site.num_nodes,
        "ranks": config.parallel.ranks,
        "time": _queue_of(config).time,
        "code": code.digest,
        "commit": code.commit,
        "submitted": datetime.fromtimestamp(clock.wall()).isoformat(timespec="seconds"),
    }
    try:
        handle = os.open(_root(config) / JOBS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)
    except OSError as why:
        raise StateError(
            f"job {job.id} is queued, but cannot be noted in {_root(config) / JOBS}: {why}; make "
            "room before another launch"
        ) from why


def _say(ready: Sequence[tuple[Config, Path]], ids: Sequence[str]) -> None:
    config = ready[0][0]
    for (_, folder), one in list(zip(ready, ids, strict=True))[:SHOWN]:
        print(f"job {one}: {paths.shown(folder)}")
    where = paths.shown(_root(config) / JOBS)
    more = f", {len(ids) - SHOWN} more in {where}" if len(ids) > SHOWN else ""
    told = batch.summary(config, _queue_of(config), jobs=len(ids))
    print(f"queued{more}: {told}", file=sys.stderr)


def _one_folder_each(configs: Sequence[Config]) -> None:
    """Several jobs never train in one folder."""
    taken: set[str] = set()
    faults = []
    for config in configs:
        if config.resume not in (runs.NONE, runs.AUTO):
            key = f"resume={config.resume}"
        elif config.run.name != runs.AUTO:
            key = f"run.name={config.run.name}"
        else:
            continue
        if key in taken:
            faults.append(
                f"{key}: {len(configs)} jobs would train in one folder; leave it out, or start "
                "one job"
            )
        taken.add(key)
    if faults:
        raise ConfigError(sorted(set(faults)))


def _not_queued_already(configs: Sequence[Config]) -> None:
    again = [c for c in configs if c.resume not in (runs.NONE, runs.AUTO)]
    if not again:
        return
    waiting = slurm.queued()
    faults = []
    for config in again:
        folder = _folder(config).resolve()  # typed with or without the links to scratch
        ids = [str(row["job"]) for row in read_json_lines(_root(config) / JOBS)
               if Path(str(row.get("folder"))).resolve() == folder]  # fmt: skip
        faults += [
            f"resume={config.resume}: its job {one} is still in the queue; scancel {one}, or wait "
            "for it"
            for one in ids
            if one in waiting
        ]
    if faults:
        raise ConfigError(faults)


def _folder(config: Config) -> Path:
    if config.resume in (runs.NONE, runs.AUTO):
        return paths.run_folder(config)
    return paths.PROJECT / config.resume


def _root(config: Config) -> Path:
    return paths.PROJECT / config.run.root


def _queue_of(config: Config) -> Slurm:
    queue = config.site.queue
    assert queue.kind == "slurm"
    return queue
