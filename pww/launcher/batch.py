"""The batch script of one array of runs that want the same allocation, made by submitit.

One task a run of the array, one Slurm task a rank. What the script does besides starting the ranks:
it takes its run from its own list, runs the code that was submitted, and queues itself again when
the ranks stopped because the job's time was nearly over. The shell does that, since a rank's
container need not have `scontrol`.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from submitit.slurm.slurm import _make_sbatch_string

from pww.config import paths
from pww.config.check_site import is_full
from pww.config.schema import Launcher, Site, Slurm


class Asks(Protocol):
    """What a queue is told of a job: a configuration has it."""

    @property
    def site(self) -> Site:
        """The machine, and its queue."""

    @property
    def launcher(self) -> Launcher:
        """What becomes of the job."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a job's ranks run, and what its batch shell does around them."""

    module: str = "pww.worker"
    setup: tuple[str, ...] = ()
    # (): ranks that stopped for want of time are queued again; else how the script ends
    teardown: tuple[str, ...] = ()
    again: str = "resume=$run"  # what a person gives to go on with a job that ended


TRAIN = Program()


def script(config: Asks, *, runs: Sequence[Path], code: Path, program: Program = TRAIN) -> str:
    """The script that is given to `sbatch`.

    Masks bind the ranks of a full node; a part of a node is bound by `cpu_bind`, since masks
    outside of the allocation make the step fail. `--cpus-per-task` goes to srun too, which does
    not inherit it.

    Args:
        config: of the first run; the others' differ in nothing that a queue knows of.
        runs: folders, one a task of the array; a single one makes a job without array.
        code: folder of the `pww` that the ranks import.
        program: what the ranks run.
    """
    site, queue = config.site, queue_of(config)
    masks = bool(site.cpu_masks) and is_full(site, queue)
    bind = f"mask_cpu:{','.join(site.cpu_masks)}" if masks else queue.cpu_bind
    step = [
        "srun --unbuffered --open-mode=append",
        # One log a rank; a job that was queued again goes on in it
        '--output="$run/slurm/${job}_%t.log"',
        f"--cpus-per-task={site.cores_per_rank}",
        f"--cpu-bind={bind}",
        f"--distribution={queue.distribution}",
        "--kill-on-bad-exit=1",
    ]
    number = "%j" if len(runs) == 1 else "%A_%a"
    text: str = _make_sbatch_string(
        command=f'{" ".join(step)} {queue.python} -m {program.module} "$run"',
        use_srun=False,  # it would quote the names of our logs
        folder=runs[0] / "slurm",
        job_name=f"pww-{runs[0].name}",
        partition=queue.partition,
        account=queue.account or None,
        time=queue.time,
        nodes=site.num_nodes,
        ntasks_per_node=site.ranks_per_node,
        gpus_per_node=queue.gpus_per_node or None,
        cpus_per_task=site.cores_per_rank,
        mem=queue.memory or None,
        exclusive=queue.exclusive or None,
        signal_delay_s=queue.signal_s,
        wckey=None,
        map_count=None if len(runs) == 1 else len(runs),
        array_parallelism=len(runs),
        stderr_to_stdout=True,
        additional_parameters={
            "requeue": True,
            "output": runs[0] / "slurm" / f"{number}_batch.log",
        },
        setup=[
            *_which_run(runs),
            *_which_code(code, program.again),
            *_environment(site.cores_per_rank),
            *program.setup,
            *queue.setup,
        ],
        teardown=list(program.teardown) or _again(config.launcher.requeues, program.again),
    )
    return text


def _which_run(runs: Sequence[Path]) -> list[str]:
    listed = " ".join(shlex.quote(str(run)) for run in runs)
    return [
        f"runs=({listed})",
        'run="${runs[${SLURM_ARRAY_TASK_ID:-0}]}"',
        "job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}",
        'mkdir -p "$run/slurm" && exec >>"$run/slurm/${job}_batch.log" 2>&1',
        f'rm -f "$run/{paths.REQUEUE}"',
    ]


def _which_code(code: Path, again: str) -> list[str]:
    """The code as submitted, whatever became of the clone; its other files are the clone's."""
    folder = shlex.quote(str(code))
    return [
        f"code={folder}",
        'if [ ! -f "$code/pww/worker.py" ]; then',
        f'  echo "$code: the code that was submitted is gone; submit again: {again}" >&2',
        "  exit 1",
        "fi",
        f"cd {shlex.quote(str(paths.PROJECT))} || exit 1",
        # The current folder would come before PYTHONPATH
        'export PYTHONSAFEPATH=1 PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"',
    ]


def _environment(cores: int) -> list[str]:
    return [
        f"export OMP_NUM_THREADS={cores}",
        # A compute node downloads nothing: what is missing is a fault at once, not a long wait
        "export HF_HUB_OFFLINE=1",
    ]


def _again(requeues: int, again: str) -> list[str]:
    """What ended decides: only a stop for want of time leaves the marker."""
    return [
        "status=$?",
        f'if [ -e "$run/{paths.REQUEUE}" ]; then',
        f'  if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {requeues} ]; then',
        f'    echo "stopped in time, and queued again {requeues} times already '
        f'(launcher.requeues); go on with: {again}"',
        '  elif scontrol requeue "$job"; then',
        "    exit 0",
        "  else",
        f'    echo "stopped in time, but not queued again; go on with: {again}"',
        "  fi",
        "fi",
        "exit $status",
        "",
    ]


def queue_of(config: Asks) -> Slurm:
    """The queue of a site that has one."""
    queue = config.site.queue
    assert queue.kind == "slurm"
    return queue


def ranks_of(config: Asks) -> int:
    """Ranks of one job."""
    return config.site.num_nodes * config.site.ranks_per_node


def summary(config: Asks, *, jobs: int) -> str:
    """The script's facts on one line."""
    site, queue = config.site, queue_of(config)
    account = queue.account or "the scheduler's default (site.queue.account=…, or PWW_ACCOUNT)"
    array = f"an array of {jobs} jobs, each " if jobs > 1 else ""
    return (
        f"{site.name}, partition {queue.partition}, {array}"
        f"{site.num_nodes} node(s) x {site.ranks_per_node} ranks = {ranks_of(config)} ranks, "
        f"{site.cores_per_rank} cores each, time {queue.time}, account {account}"
    )
