"""`python -m pww.smoke [group=choice ...] [key=value ...] [json=true]`: does it train here?

Takes the words that `python -m pww.train` would take, here or in the queue of a site, and trains
nothing that is kept. Every check is a line; the last line is PASS or FAIL with the reasons. Exit
codes: 0 PASS (or queued), 1 FAIL, 2 a wrong configuration.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import run_app
from pww.config.running import Done
from pww.config.schema import Config
from pww.config.shorthand import with_tokenizer
from pww.errors import ConfigError

JSON = "json=true"
ROOT = "outputs/smoke"
"""Beside the runs, so that nothing takes a smoke test for one that could go on."""


def main(config: Config, *, as_json: bool) -> int:
    """Runs the ranks here and returns the exit code of the verdict."""
    from pww.launcher import identity, process, runs
    from pww.smoke.book import concluded, said

    clock = SystemClock()
    if config.dry:
        print(f"dry: nothing was started. {config.parallel.ranks} rank(s) would be tested here")
        return 0
    config, folder = runs.claim(config, clock)
    print(f"smoke test in {paths.shown(folder)}", file=sys.stderr)
    identity.freeze(*identity.current(), folder)
    code = process.run(
        command(folder, ranks=config.parallel.ranks, as_json=as_json),
        env=process.environment(threads=config.site.cores_per_rank),
        clock=clock,
    )
    return said(concluded(folder, code), as_json=as_json)


def command(folder: Path, *, ranks: int, as_json: bool) -> list[str]:
    """What runs the ranks of the test in `folder`."""
    words = [str(folder), *(["json"] if as_json else [])]
    if ranks == 1:
        return [sys.executable, "-m", "pww.smoke.rank", *words]
    return [sys.executable, "-m", "pww.smoke.local", str(ranks), *words]


def settle(config: Config, given: frozenset[str]) -> Config:
    """As `pww.train` would start it, and new.

    Raises:
        ConfigError: it could not be started like this.
    """
    from pww import train
    from pww.launcher import runs

    if config.resume != runs.NONE:
        raise ConfigError(
            [f"resume={config.resume}: a smoke test goes on with no run; leave it out"]
        )
    return train.settle(config, given)


def start(argv: Sequence[str]) -> int:
    """The program: the words after its name in, the exit code out."""
    as_json = JSON in argv

    def queue(configs: Sequence[Config]) -> Sequence[Done]:
        from pww.smoke import queued

        return queued.queue(configs, clock=SystemClock(), as_json=as_json)

    words = [word for word in argv if word != JSON]
    try:
        if any(word in ("-m", "--multirun") for word in words):
            raise ConfigError(["-m: a smoke test has one verdict; start one at a time"])
        words = with_tokenizer(words, here=Path.cwd())
    except ConfigError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    return run_app(
        partial(main, as_json=as_json), program="pww.smoke",
        defaults=[f"run.root={ROOT}"], refine=settle, queue=queue, argv=words,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:]))
