"""Several ranks on one machine under torch's elastic launcher: exit codes, and the way to stop."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pww.smoke.book import concluded

ROOT = Path(__file__).parents[2]

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


SMOKE = """
import sys
from pww.smoke import local
local.MODULE = sys.argv[1]
sys.exit(local.main(["2", sys.argv[2]]))
"""


def test_a_rank_of_a_smoke_test_that_is_killed_is_named(tmp_path: Path) -> None:
    """Torch's launcher alone knows which it was; the others end with it."""
    (tmp_path / "dies.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    os.kill(os.getpid(), 9)\n"
        "time.sleep(100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, "dies", str(tmp_path)], capture_output=True, text=True,
        timeout=120, check=False, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 137, done.stderr
    assert concluded(tmp_path, 137) == "FAIL: rank 1 ended with exit code 137 and said nothing"
