"""Does the word that a job's time is nearly over reach a rank, through its wrapper and container?

Slurm sends SIGUSR2 to every process of a step. A wrapper that does not `exec` dies of it, the step
with it, and the rank neither stops in order nor is queued again. Inside a job Slurm itself sends
it, to a step of one task; elsewhere the same command is started here, and its processes get it from
us.
"""

import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping

from pww.config import paths
from pww.config.schema import Config, Slurm
from pww.errors import StateError
from pww.launcher import slurm
from pww.launcher.finding import Finding

START_S = 60.0
"""A container may take so long to start."""
HEAR_S = 15
CODE = (
    "import os, signal\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})\n"
    "print('ready', os.environ.get('SLURM_STEP_ID', ''), flush=True)\n"
    f"print('told' if signal.sigtimedwait({{signal.SIGUSR2}}, {HEAR_S}) else 'deaf', flush=True)\n"
)
"""A rank that waits for it; any Python can run it."""


def findings(config: Config) -> Iterator[Finding]:
    """One, where there is a queue that would send a signal."""
    queue = config.site.queue
    if queue.kind == "slurm":
        yield _asked(queue, os.environ)


def _asked(queue: Slurm, environ: Mapping[str, str]) -> Finding:
    job = environ.get("SLURM_JOB_ID", "")
    by_slurm = bool(job) and all(map(shutil.which, ("srun", "scancel")))
    lines = [*queue.setup, f"exec {queue.python} -c {shlex.quote(CODE)}"]
    command = ["bash", "-c", "\n".join(lines)]
    if by_slurm:
        command = ["srun", "--overlap", "--nodes=1", "--ntasks=1", *command]
    try:
        process = subprocess.Popen(
            command, cwd=paths.PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError as why:
        return _unknown(str(why))
    limit = threading.Timer(START_S + HEAR_S, _end, [process])
    limit.start()
    try:
        assert process.stdout is not None
        word, _, step = process.stdout.readline().strip().partition(" ")
        if word == "ready" and by_slurm:
            slurm.send(signal.SIGUSR2, f"{job}.{step}")
        elif word == "ready":
            os.killpg(process.pid, signal.SIGUSR2)
        said, errors = process.communicate()
    except StateError as fault:
        return _unknown(str(fault))
    finally:
        limit.cancel()
        _end(process)
        process.wait()
    if word != "ready":
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return _unknown(last[0])
    sender = "Slurm" if by_slurm else "this process"
    if said.strip() == "told" and process.returncode == 0:
        return Finding("signal", "good", f"SIGUSR2 from {sender} reaches a rank's Python")
    ended = _name(process.returncode)
    did = "did not reach" if said.strip() == "deaf" else "ended"
    return Finding(
        "signal", "bad",
        f"site.queue.python={queue.python}: SIGUSR2 from {sender}, which says that the time is "
        f"nearly over, {did} the rank ({ended}); a wrapper must `exec` the command after it",
    )  # fmt: skip


def _unknown(why: str) -> Finding:
    return Finding(
        "signal", "warning",
        f"a rank's Python does not start here, so signals were not tried ({why}); run this inside "
        "a job too",
    )  # fmt: skip


def _name(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _end(process: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
