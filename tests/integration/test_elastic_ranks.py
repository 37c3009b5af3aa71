"""Several ranks on one machine under torch's elastic launcher: exit codes, and the way to stop."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

LAUNCH = """
import sys
from pww.launcher.elastic import launch
sys.exit(launch(2, [sys.executable, "-c", sys.argv[1]]))
"""


@contextmanager
def started(body: str) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH, textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def test_the_first_failing_ranks_own_code() -> None:
    with started(
        """
        import os, sys, time
        assert os.environ["WORLD_SIZE"] == "2"
        assert os.environ["MASTER_ADDR"] == "127.0.0.1"
        if os.environ["RANK"] == "1":
            print("the reason", file=sys.stderr)
            sys.exit(7)
        time.sleep(100)
        """
    ) as process:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 7
        assert err == "the reason\n"


def test_both_ranks_end_well() -> None:
    with started("import os; os.write(1, os.environ['LOCAL_RANK'].encode() + b' ')") as process:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert sorted(out.split()) == ["0", "1"]


def test_sigterm_stops_every_rank_and_says_130() -> None:
    with started(
        """
        import os, signal, sys, time
        def stop(*_):
            os.write(1, b"stopped\\n")
            sys.exit(130)
        signal.signal(signal.SIGTERM, stop)
        os.write(1, b"ready\\n")
        time.sleep(100)
        """
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
        process.send_signal(signal.SIGINT)  # the terminal's reaches the ranks themselves
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert out.split() == ["stopped", "stopped"]
        assert err == ""
