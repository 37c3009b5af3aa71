"""Every test image counts once, on any number of ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "accuracy_ranks.py"
ROOT = Path(__file__).parents[2]


def test_10_000_images_on_1_2_3_and_7_ranks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert len(rows) == 1 + 2 + 3 + 7
    for right, count, accuracy, loss, expected, few in rows:
        assert (right, count, few) == (expected, 10_000, 2)
        assert accuracy == expected / 10_000
        assert loss == pytest.approx(rows[0][3], rel=1e-6)
