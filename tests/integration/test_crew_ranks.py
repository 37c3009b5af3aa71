"""An upload by three real ranks, and one in the middle of which a rank dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from blob_desk import PIECE, Desk, made

PROJECT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "crew_ranks.py"
PIECES = 45


def test_ranks_share_an_upload_and_a_dead_one_costs_nothing_but_time(tmp_path: Path) -> None:
    desk = Desk.open(tmp_path / "store")
    digests = []
    for seed in range(2):
        path, info = made(tmp_path, seed, size_bytes=PIECES * PIECE)
        path.rename(tmp_path / f"delta{seed}")
        digests.append(info.digest)
    places = f"{PROJECT}{os.pathsep}{PROJECT / 'tests' / 'programs'}"
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(tmp_path), desk.url],
            env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        for seed, digest in enumerate(digests):
            found = desk.store.path(digest)
            assert found is not None
            assert found.read_bytes() == (tmp_path / f"delta{seed}").read_bytes()
    finally:
        desk.close()
    brought = [json.loads((tmp_path / f"delta{seed}.json").read_text()) for seed in range(2)]
    assert brought[0] == {"1": 15 * PIECE, "2": 15 * PIECE}
    assert "2" not in brought[1]
    assert "no more errands" not in done.stderr
