"""Submitting: seconds from the command to the id of one job, and to those of 200 in one array.

    python tests/bench/launch.py

Whole commands, start of Python, composing and checking included, against a Slurm that this starts;
the jobs end at once. The median of three for one job; one try for 200.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from figures import figure, machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "programs"))

from slurm_box import Box, missing  # noqa: E402

JOBS = 200


def submit_s(box: Box, root: str, *words: str) -> float:
    """One command, from its start to its end."""
    start = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pww.train", "site=snellius", "model=qwen3_0.6b",
         "site.queue.python=/bin/true", "site.queue.setup=[]", f"run.root={root}", *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **box.env}, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return perf_counter() - start


def main() -> None:
    """Starts a Slurm, measures, stops it."""
    if lacking := missing():
        sys.exit(f"no Slurm here: {', '.join(lacking)} (apt-get install slurm-wlm munge)")
    print(machine(), file=sys.stderr)
    box = Box()
    try:
        box.start()
        # A job that just began may still write its log
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
            one = median(submit_s(box, root) for _ in range(3))
            figure("submit_1_s", one, "s", "-")
            many = submit_s(box, root, f"seed=range({JOBS})", "-m")
            figure(f"submit_{JOBS}_s", many, "s", "-")
            box.clear()
    finally:
        box.stop()


if __name__ == "__main__":
    main()
