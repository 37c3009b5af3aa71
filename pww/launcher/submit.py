"""Runs of a site with a queue: a run folder each, which goes on in it where it is resumed.

Everything is checked before the first folder is made; `arrays` queues them. They go on by
themselves; `launcher.wait=true` stays until the last has ended.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config
from pww.errors import ConfigError
from pww.launcher import arrays, batch, runs, slurm
from pww.log import read_json_lines


class MayBeDry(Protocol):
    """A configuration that may only ask what would be done."""

    @property
    def dry(self) -> bool:
        """Whether it does."""


def is_dry(configs: Sequence[MayBeDry]) -> bool:
    """Whether the jobs of a command line are only shown.

    Raises:
        ConfigError: some are and some are not.
    """
    if len({config.dry for config in configs}) > 1:
        raise ConfigError(["dry=true,false: some jobs would be queued; give one of them"])
    return configs[0].dry


def submit(
    configs: Sequence[Config], *, clock: Clock, program: batch.Program = batch.TRAIN
) -> list[arrays.Job]:
    """Queues every run; the jobs are in the order of `configs`.

    Raises:
        ConfigError: two of them want one folder, or one is in the queue already.
        StateError: as `arrays.queue`.
    """
    _one_folder_each(configs)
    _not_queued_already(configs)
    return arrays.queue([_wanted(one, clock) for one in configs], clock=clock, program=program)


def show(configs: Sequence[Config], *, clock: Clock, program: batch.Program = batch.TRAIN) -> None:
    """Prints every script that `submit` would give to sbatch; makes and changes nothing."""
    _one_folder_each(configs)
    taken: set[str] = set()
    folders = []
    for config in configs:
        one = runs.named(config, clock)
        name, number = one.run.name, 1
        while name in taken:
            number += 1
            name = f"{one.run.name}-{number}"
        taken.add(name)
        run = one.run.model_copy(update={"name": name})
        folders.append(_folder(one.model_copy(update={"run": run})))
    arrays.show([_wanted(one, clock) for one in configs], folders, program=program)


def _wanted(config: Config, clock: Clock) -> arrays.Wanted:
    return arrays.Wanted(
        site=config.site,
        launcher=config.launcher,
        root=_root(config),
        claim=partial(_claim, config, clock),
        is_new=config.resume in (runs.NONE, runs.AUTO),
        about={"replica": config.replica_id},
    )


def _claim(config: Config, clock: Clock) -> Path:
    return runs.claim(config, clock)[1]


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
        ids = [str(row["job"]) for row in read_json_lines(_root(config) / arrays.JOBS)
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
