"""Runs a command as part of this process: signals go through, it never outlives us."""

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from pww.clock import Clock

GRACE_S = 5.0
"""A command that was asked to stop has this long; what it made durable survives the kill."""
AGAIN_S = 1.0
"""A signal this much later than the first means it."""
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Linux: this process gets SIGKILL when its parent ends in whatever way; elsewhere nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    clock: Clock,
    killed: Callable[[], None] = lambda: None,
) -> int:
    """Runs `command` in the foreground and returns its exit code.

    SIGINT and SIGTERM to this process become one SIGTERM to the command (a terminal's Ctrl-C
    reaches it anyway, in the same process group); `GRACE_S` later, or at another signal `AGAIN_S`
    later, it is killed; from then on this process ignores both, as it is about to end. If signal n
    ended the command, `killed` is called and the code is 128 + n, or 130 if it was asked to stop.
    """
    asked: list[float] = []
    child: subprocess.Popen[bytes] | None = None

    def ask(signum: int, frame: FrameType | None) -> None:
        asked.append(clock.monotonic())  # the loop tells the command, so that it is told once

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    tick = threading.Event()
    try:
        child = subprocess.Popen(list(command), env=dict(env), preexec_fn=die_with_parent)
        told = False
        while (code := child.poll()) is None:
            if asked and not told:
                child.send_signal(signal.SIGTERM)
                told = True
            # `timeout` and terminals send one wish to stop twice: to us, then to our whole group
            if asked and (asked[-1] - asked[0] > AGAIN_S or clock.monotonic() > asked[0] + GRACE_S):
                child.kill()
            clock.wait(tick, 0.05)
    finally:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
        for number, handler in before.items():
            # A third wish to stop is no news to a program that ends: it would end it by a traceback
            signal.signal(number, signal.SIG_IGN if asked else handler)
    if code < 0:
        killed()
        return 128 + signal.SIGINT if asked else 128 - code
    return code


def environment(*, threads: int) -> dict[str, str]:
    """This process's environment for a rank with `threads` CPU threads.

    Without a place in a step of Slurm: typed inside one, pww.train is no rank of it.
    """
    kept = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    return {**kept, "OMP_NUM_THREADS": str(threads)}
