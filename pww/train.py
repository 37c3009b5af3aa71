"""`python -m pww.train`: starts or goes on with a replica's run, or says what would be queued.

This process composes, checks and makes the run's folder; the ranks are processes of their own that
read its `config.yaml`. It never imports torch. Exit codes: 0 the corpus is exhausted, 1 a fault, 2
a wrong configuration, 130 stopped and resumable.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pww.clock import Clock, SystemClock
from pww.config import paths
from pww.config.check_given import without_effect
from pww.config.load import run_app
from pww.config.schema import Config, HfModel
from pww.config.shorthand import with_tokenizer
from pww.errors import ConfigError


def main(config: Config) -> int:
    """Runs the replica to its end and returns the exit code."""
    from pww.launcher import process, runs

    clock = SystemClock()
    if config.dry:
        return _dry(config, clock)
    if config.resume == runs.AUTO:
        print("resume=auto: no unfinished run of this replica; a new one", file=sys.stderr)
    config, folder = runs.claim(config, clock)
    print(f"run {config.run.name} in {paths.shown(folder)}", file=sys.stderr)

    def killed() -> None:
        print(f"killed; go on with: python -m pww.train resume={folder}", file=sys.stderr)

    return process.run(
        command(folder, ranks=config.parallel.ranks),
        env=process.environment(threads=config.site.cores_per_rank),
        clock=clock,
        killed=killed,
    )


def _dry(config: Config, clock: Clock) -> int:
    """Says what would be done, and what is not there for it.

    Raises:
        ConfigError: the run would end before its first step.
    """
    from pww.launcher import batch, runs
    from pww.launcher.missing import missing

    queue = config.site.queue
    if queue.kind == "slurm":
        config = runs.named(config, clock)
        print(batch.script(config, queue))
        print(batch.summary(config, queue), file=sys.stderr)
    else:
        if config.resume in (runs.NONE, runs.AUTO):
            what = f"make its folder in {paths.shown(paths.PROJECT / config.run.root)}"
        else:
            what = f"go on in {paths.shown(Path(config.resume))}"
        print(
            f"dry: nothing was started. {config.replica_id}, {config.parallel.ranks} rank(s), "
            f"would {what} and train on {config.data.name} here"
        )
    if faults := missing(config, clock):
        raise ConfigError([f"dry: it would not train: {fault}" for fault in faults])
    return 0


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
    from pww.launcher import runs

    config = _placed(config)
    faults: list[str] = []
    if config.site.queue.kind == "slurm" and not config.dry:
        faults.append(
            f"site={config.site.name}: submitting to a queue is not part of this version; "
            "dry=true shows the script, and site=local runs inside an allocation that you hold"
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
    return run_app(main, program="pww.train", refine=settle, argv=words)


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
