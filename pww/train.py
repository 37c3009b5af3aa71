"""`python -m pww.train`: starts or goes on with a replica's run, here or in the queue of its site.

This process composes, checks and makes the run's folder; the ranks are processes of their own that
read its `config.yaml`. It never imports torch, and never trains where the site has a queue. Exit
codes: 0 the corpus is exhausted, or the jobs are queued; 1 a fault, 2 a wrong configuration, 130
stopped and resumable.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pww.clock import Clock, SystemClock
from pww.config import paths
from pww.config.check_given import without_effect
from pww.config.load import run_app
from pww.config.running import Done
from pww.config.schema import Config, HfModel
from pww.config.shorthand import with_tokenizer
from pww.errors import ConfigError


def main(config: Config) -> int:
    """Runs the replica to its end and returns the exit code."""
    from pww.launcher import identity, process, runs

    clock = SystemClock()
    if config.dry:
        return _dry(config, clock)
    if config.resume == runs.AUTO:
        print("resume=auto: no unfinished run of this replica; a new one", file=sys.stderr)
    config, folder = runs.claim(config, clock)
    print(f"run {config.run.name} in {paths.shown(folder)}", file=sys.stderr)
    if said := identity.freeze(*identity.current(), folder):
        print(said, file=sys.stderr)

    def killed() -> None:
        print(f"killed; go on with: python -m pww.train resume={folder}", file=sys.stderr)

    return process.run(
        command(folder, ranks=config.parallel.ranks),
        env=process.environment(threads=config.site.cores_per_rank),
        clock=clock,
        killed=killed,
    )


def queue(configs: Sequence[Config]) -> list[Done]:
    """Queues the runs of a site with a queue; with `launcher.wait=true` says how they ended.

    Raises:
        PwwError: they cannot be queued; what was queued before is named.
    """
    from pww.launcher import submit, waiting

    clock = SystemClock()
    if submit.is_dry(configs):
        submit.show(configs, clock=clock)
        _tell_of_missing(configs, clock)
        return []
    jobs = submit.submit(configs, clock=clock)
    waited = [n for n, config in enumerate(configs) if config.launcher.wait]
    done = [Done(0)] * len(jobs)
    if waited:
        print("launcher.wait=true: waiting; Ctrl-C leaves the jobs in the queue", file=sys.stderr)
    for number, end in zip(
        waited, waiting.wait([jobs[n] for n in waited], clock=clock), strict=True
    ):
        if end.sentence:
            print(end.sentence, file=sys.stderr)
        done[number] = Done(0 if end.finished else 1, end.objective)
    return done


def _dry(config: Config, clock: Clock) -> int:
    """Says what would be done here, and what is not there for it.

    Raises:
        ConfigError: the run would end before its first step.
    """
    from pww.launcher import runs

    if config.resume in (runs.NONE, runs.AUTO):
        what = f"make its folder in {paths.shown(paths.PROJECT / config.run.root)}"
    else:
        what = f"go on in {paths.shown(Path(config.resume))}"
    print(
        f"dry: nothing was started. {config.replica_id}, {config.parallel.ranks} rank(s), "
        f"would {what} and train on {config.data.name} here"
    )
    _tell_of_missing([config], clock)
    return 0


def _tell_of_missing(configs: Sequence[Config], clock: Clock) -> None:
    from pww.launcher.missing import missing

    faults = dict.fromkeys(fault for config in configs for fault in missing(config, clock))
    if faults:
        raise ConfigError([f"dry: it would not train: {fault}" for fault in faults])


def command(folder: Path, *, ranks: int) -> list[str]:
    """What runs the ranks of the run in `folder`: the worker, or torch's launcher of several."""
    if ranks == 1:
        return [sys.executable, "-m", "pww.worker", str(folder)]
    return [sys.executable, "-m", "pww.launcher.elastic", str(ranks), str(folder)]


def settle(config: Config, given: frozenset[str]) -> Config:
    """What this program checks besides the configuration: the queue, and which run it is.

    Raises:
        ConfigError: it cannot be started like this.
    """
    from pww.launcher import bootstrap, runs

    config = _placed(config)
    faults = (
        [] if config.dry or config.site.queue.kind == "none" else bootstrap.unnamed(config.site)
    )
    if config.central.security.keys != "none":
        faults.append(
            f"central.security.keys={config.central.security.keys}: is the central's; a site has "
            "central.bundle"
        )
    try:
        config = runs.settle(config, given)
    except ConfigError as error:
        faults += error.faults
    else:
        faults += without_effect(config, given)
    if config.diloco.overlap and config.central.url == "none":
        faults.append(
            "diloco.overlap=true: a replica alone has no network to hide and would only use each "
            "theta a phase late; give central.url=https://HOST:PORT, or leave it out"
        )
    if faults:
        raise ConfigError(faults)
    return config


def _placed(config: Config) -> Config:
    """A model's folder by its whole path: its run may go on from wherever somebody resumes it."""
    model = config.model
    if not isinstance(model, HfModel) or not Path(model.config).is_dir():
        return config
    whole = model.model_copy(update={"config": str(Path(model.config).absolute())})
    return config.model_copy(update={"model": whole})


def start(argv: Sequence[str]) -> int:
    """The program: the words after its name in, the exit code out."""
    try:
        words = with_tokenizer(argv, here=Path.cwd())
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    return run_app(main, program="pww.train", refine=settle, queue=queue, argv=words)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
