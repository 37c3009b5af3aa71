"""A command in the foreground: its exit code is ours, signals reach it, it never outlives us."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pww.clock import SystemClock
from pww.launcher.process import environment, run

OBEDIENT = """
import signal, sys, time
def stop(*_):
    print("asked", flush=True)
    sys.exit({code})
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
DEAF = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""
RUNNER = """
import sys
from pww.clock import SystemClock
from pww.launcher import process
if len(sys.argv) > 2:
    process.GRACE_S = float(sys.argv[2])
sys.exit(process.run([sys.executable, "-c", sys.argv[1]], env=process.environment(threads=3),
                     clock=SystemClock()))
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(1)", 1),
        ("raise SystemExit(130)", 130),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
def test_the_exit_code_is_the_commands(body: str, code: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = run([sys.executable, "-c", body], env=environment(threads=1), clock=SystemClock())
    assert found == code
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_rank_gets_its_threads() -> None:
    env = environment(threads=7)
    assert env["OMP_NUM_THREADS"] == "7"
    assert env["PATH"] == os.environ["PATH"]


@contextmanager
def started(body: str, *args: str, runner: str = RUNNER) -> "Iterator[subprocess.Popen[str]]":
    """A runner around `body`, from when the command has said that it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", runner, textwrap.dedent(body), *args],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("code", [130, 1, 0])
def test_a_signal_reaches_the_command_as_sigterm(number: signal.Signals, code: int) -> None:
    with started(OBEDIENT.format(code=code)) as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert out == "asked\n"
    assert process.returncode == code


def test_a_command_that_does_not_stop_is_killed_after_its_grace() -> None:
    with started(DEAF, "0.2") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130


def test_a_second_signal_kills_at_once() -> None:
    """Signals pending together are delivered once, so they are sent until the end, and after it."""
    with started(DEAF, "1000") as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
    assert process.returncode == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wish_to_stop_after_the_end_changes_nothing(number: signal.Signals) -> None:
    """The command is gone, and this process takes a while to end."""
    body = OBEDIENT.format(code=130)
    runner = RUNNER.replace("sys.exit(process.run(", "code = (process.run(") + (
        f"import os\nos.kill(os.getpid(), {int(number)})\nsys.exit(code)\n"
    )
    with started(body, runner=runner) as process:
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("asked\n", 130)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_the_command_dies_with_a_runner_that_is_killed() -> None:
    with started(DEAF) as process:
        process.kill()
        process.wait()
        assert process.stdout is not None
        # The command holds the pipe's other end: end of file means that it is gone
        assert process.stdout.read() == ""
