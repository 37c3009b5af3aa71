"""The program: a command line becomes cells, each a run for every seed and learning rate.

    python -m pww.lab [group=choice ...] [key=value ...] [-m]
    python -m pww.lab predict|report|study ...

A finished run is not done again, an unfinished one is started anew. At a site with a queue each
cell is a job (`queued`). Torch is imported when the first run begins.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pww import log as pww_log
from pww.clock import SystemClock
from pww.config import paths
from pww.config.check_codec import forced, late
from pww.config.load import run_app
from pww.config.prepare import LAB
from pww.config.running import Done
from pww.config.schema.lab import LabConfig
from pww.config.words import refuse_unknown_command
from pww.errors import ConfigError
from pww.lab import given
from pww.lab.cells import Value
from pww.lab.job import Job
from pww.lab.reporting import COMMANDS
from pww.lab.reporting import start as start_command
from pww.lab.study import FREE
from pww.launcher import identity
from pww.launcher.bootstrap import unnamed

log = logging.getLogger(__name__)
TUNE = re.compile(r"lab\.tune=(\w+):(\[.*\])")


def start(argv: Sequence[str]) -> int:
    """The program: the words after its name in, the exit code out."""
    if argv and argv[0] in COMMANDS:
        return start_command(argv)
    try:
        refuse_unknown_command(argv, tuple(COMMANDS))
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    app = App()
    return run_app(
        app.run, program="pww.lab", refine=app.settle, queue=app.queue, argv=spelled(argv),
        shape=LAB,
    )  # fmt: skip


def spelled(words: Sequence[str]) -> list[str]:
    """The words, `lab.tune=lr:[1e-3,3e-3]` as Hydra reads it."""
    return [TUNE.sub(r"lab.tune.\1=\2", word) for word in words]


class App:
    """Remembers between the check of a job and its run what was typed for it."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def settle(self, config: LabConfig, keys: frozenset[str]) -> LabConfig:
        """The lab's last check.

        Raises:
            ConfigError: something was typed that nothing reads, or the site is not told all.
        """
        faults = list(given.without_effect(config, keys))
        if config.site.queue.kind == "slurm" and not config.dry:
            faults += unnamed(config.site)
        if faults:
            raise ConfigError(faults)
        self._jobs.append(Job(config, cell_of(config, keys), "optim.lr" in keys))
        return config

    def queue(self, configs: Sequence[LabConfig]) -> list[Done]:
        """All cells, to the queue of their site."""
        from pww.lab import queued

        for config in configs:
            _tell(config)
        _tell_of_gpus(configs[0])
        return queued.queue([self._job(config) for config in configs], clock=SystemClock())

    def _job(self, config: LabConfig) -> Job:
        return next(job for job in self._jobs if job.config is config)

    def run(self, config: LabConfig) -> int:
        """All runs of a cell; the exit code."""
        job = self._job(config)
        if config.dry:
            for one in job.plan:
                print(f"{paths.shown(job.study / one.name)}: seed {one.seed}, lr {one.lr:g}")
            return 0
        _tell(config)
        code = identity.in_short(asdict(identity.current()[0]))
        print(job.carry_out(code=code, clock=SystemClock()), flush=True)
        return 0


def _tell(config: LabConfig) -> None:
    """What is tried here and nowhere else."""
    pww_log.setup()
    if config.diloco is not None and not forced(config.codec):
        for sentence in late(config.codec, config.diloco.outer):
            log.warning("a run would refuse this: %s", sentence)


def _tell_of_gpus(config: LabConfig) -> None:
    """GPUs that a site's file asks for where the lab could do without: they are paid for."""
    name, queue = config.site.name, config.site.queue
    if queue.kind == "slurm" and queue.gpus_per_node and queue.partition not in queue.partitions:
        log.warning(
            "each cell asks for %d GPU, and the lab computes on cores: give "
            "site.queue.gpus_per_node=0, or write it into conf/cell/%s.yaml, as in "
            "conf/cell/slurm.yaml",
            queue.gpus_per_node,
            name,
        )


def cell_of(config: LabConfig, keys: frozenset[str]) -> dict[str, Value]:
    """The overrides that make the cell: of the keys that were typed, those that runs differ by."""
    tree = config.model_dump(mode="json")
    found: dict[str, Value] = {}
    for key in sorted(keys):
        if any(key == free or key.startswith(f"{free}.") for free in FREE):
            continue
        value: Any = tree
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            value = value.get("name", value.get("kind"))
        if value is not None:
            found[key] = value
    return found
