"""A smoke test as a job: queued as a run is, its verdict said by the batch shell in its own log.

The shell has the last word because a rank that is killed has none: `RUN/slurm/JOB_batch.log` ends
in PASS or FAIL whatever became of the ranks, and the job's exit code is the verdict's.
"""

import sys
from collections.abc import Sequence

from pww.clock import Clock
from pww.config import paths
from pww.config.running import Done
from pww.config.schema import Config
from pww.errors import ConfigError
from pww.launcher import submit, waiting
from pww.launcher.batch import Program
from pww.smoke.book import CHECKS, FAIL, FAULTS, PASS, TEXT, VERDICT, concluded, said

SILENT = 1
"""An exit code for a job that left no verdict: its batch shell was ended too."""

PROGRAM = Program(
    module="pww.smoke.rank",
    # A job that Slurm queued again after a node failed starts anew
    setup=(f'rm -rf "$run/{FAULTS}" "$run/{VERDICT}" "$run/{CHECKS}" "$run/{TEXT}"',),
    teardown=(
        "status=$?",
        f'verdict="$run/{VERDICT}"',
        f'if [ ! -s "$verdict" ] || {{ [ $status -ne 0 ] && grep -qx {PASS} "$verdict"; }}; then',
        f'  why=$(cd "$run/{FAULTS}" 2>/dev/null && '
        'ls -tr | head -n 3 | xargs -r cat | paste -sd";")',
        f'  echo "{FAIL}: ${{why:-the ranks ended with exit code $status and said nothing; their '
        'last lines are in $run/slurm/${job}_*.log}" >"$verdict"',
        "fi",
        f'cat "$run/{TEXT}" 2>/dev/null',
        'cat "$verdict"',
        f'grep -qx {PASS} "$verdict"; exit $?',
        "",
    ),
)


def queue(configs: Sequence[Config], *, clock: Clock, as_json: bool) -> list[Done]:
    """Queues the test; with `launcher.wait=true` stays, and prints what came of it.

    Raises:
        ConfigError: several were asked for, or JSON of what has not been found yet.
        PwwError: it cannot be queued.
    """
    (config,) = one(configs)
    if config.dry:
        submit.show([config], clock=clock, program=PROGRAM)
        return []
    if as_json and not config.launcher.wait:
        raise ConfigError(
            ["json=true: the test is only queued, and nothing is known yet; add launcher.wait=true"]
        )
    (job,) = submit.submit([config], clock=clock, program=PROGRAM)
    shown = paths.shown(job.folder)
    if not config.launcher.wait:
        print(
            f"the last line of {shown}/slurm/{job.id}_batch.log will be {PASS} or {FAIL}",
            file=sys.stderr,
        )
        return [Done(0)]
    print("launcher.wait=true: waiting; Ctrl-C leaves the job in the queue", file=sys.stderr)
    waiting.wait([job], clock=clock)
    text = concluded(job.folder, SILENT if not (job.folder / VERDICT).exists() else 0)
    try:
        print((job.folder / (CHECKS if as_json else TEXT)).read_text(), end="")
    except OSError:
        print(f"no check was made; see {shown}/slurm", file=sys.stderr)
    return [Done(said(text, as_json=as_json))]


def one(configs: Sequence[Config]) -> Sequence[Config]:
    """The test, which is one.

    Raises:
        ConfigError: a sweep was asked for, whose verdict would be several.
    """
    if len(configs) != 1:
        raise ConfigError(
            [f"-m: {len(configs)} smoke tests have {len(configs)} verdicts; start one at a time"]
        )
    return configs
