"""What we ask of Slurm's own commands: take a script, name what is queued, the longest array.

No variable of a job or of a Slurm command in the submitting shell reaches `sbatch`: an inherited
SLURM_CPU_BIND binds every rank of the new job as the old one's were. SLURM_CONF stays, which says
where the cluster is.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor

from pww.errors import StateError

PREFIXES = (
    "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_", "PMIX_",
    "PMI_", "SUBMITIT_",
)  # fmt: skip
"""SQUEUE_STATES=RUNNING and the like would hide jobs that wait."""
OF_A_RANK = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
)  # fmt: skip
"""A job's ranks would take them for their own: places and devices of the shell that submits."""
KEPT = ("SLURM_CONF",)
ANSWER_S = 120.0
"""A command that has not answered by then will not."""


class UnansweredError(StateError):
    """A command whose effect is not known: what it was to queue may be queued."""


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to another job."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT or not (name.startswith(PREFIXES) or name in OF_A_RANK)
    }


def sbatch(script: Path) -> str:
    """Queues a script and returns the job's id.

    Raises:
        StateError: Slurm said no, or is not there.
        UnansweredError: whether it was queued is not known.
    """
    said = _run("sbatch", str(script))
    try:
        job: str = SlurmExecutor._get_job_id_from_submission_command(said)
    except FailedSubmissionError as why:
        raise UnansweredError(
            f"sbatch answered {said.strip()!r}, which names no job; `squeue --me` shows whether it "
            f"was queued ({script})"
        ) from why
    return job


def queued() -> set[str]:
    """Ids of this user's jobs that wait, run or end, tasks of an array as `12_3`.

    Raises:
        StateError: Slurm does not answer.
    """
    # %F is the array's id and %K the task's, or the job's own id and N/A
    said = _run("squeue", "--me", "--noheader", "--array", "--format=%F %K")
    found = set()
    for line in filter(None, map(str.strip, said.splitlines())):
        job, _, task = line.partition(" ")
        found.add(f"{job}_{task}" if task.isdecimal() else job)
    return found


def partition(name: str) -> dict[str, str]:
    """What Slurm says of a partition (State, MaxTime, MaxNodes, …); {} if there is none so called.

    Raises:
        StateError: Slurm does not answer.
    """
    try:
        said = _run("scontrol", "-o", "show", "partition", name)
    except StateError as fault:
        if "not found" in str(fault):
            return {}
        raise
    return dict(word.split("=", 1) for word in said.split() if "=" in word)


def accounts(user: str) -> list[dict[str, str]]:
    """This user's associations, with their limits; [] where accounting is not asked for any.

    Raises:
        StateError: there is no accounting here, or it does not answer.
    """
    columns = ("Account", "Partition", "MaxJobs", "MaxSubmit", "MaxWall")
    said = _run(
        "sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}",
        f"format={','.join(columns)}",
    )  # fmt: skip
    rows = [line.split("|") for line in said.splitlines() if line.strip()]
    return [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]


def tested(script: Path) -> str:
    """What Slurm says to a script that it is only shown: when it would start, and where.

    Raises:
        StateError: it would not take it; its words are in the sentence.
    """
    return _run("sbatch", "--test-only", str(script), errors_too=True)  # it says it there


def send(number: int, step: str) -> None:
    """Has Slurm send a signal to every process of a step, `12.3`, as it does near a job's end.

    Raises:
        StateError: it does not.
    """
    _run("scancel", f"--signal={number}", step)


def longest_array() -> int:
    """How many tasks an array may have here (MaxArraySize).

    Raises:
        StateError: Slurm does not answer.
    """
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run("scontrol", "show", "config"), re.M)
    # Indices start at 0 and end below it
    return max(1, int(found[1])) if found else 1000


def _run(*command: str, errors_too: bool = False) -> str:
    try:
        done = subprocess.run(
            command, env=scrubbed(os.environ), capture_output=True, text=True, timeout=ANSWER_S,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise StateError(
            f"{command[0]}: not on PATH; submit on a login node of the site, or load its module"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnansweredError(
            f"{command[0]}: no answer in {ANSWER_S:g} s; look with `squeue --me` what is queued "
            "before trying again"
        ) from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())
        raise StateError(f"{' '.join(command)} failed: {words or f'exit code {done.returncode}'}")
    return done.stdout + (done.stderr if errors_too else "")
