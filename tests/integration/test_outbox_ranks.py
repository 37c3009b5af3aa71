"""The outbox of a replica on several ranks: their number changes; rank 0 has no room to encode."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "outbox_ranks.py"


def started(folder: Path, *words: str, ranks: int) -> None:
    """One process life, on so many ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [sys.executable, *(torchrun if ranks > 1 else []), str(PROGRAM), str(folder), *words],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def life(folder: Path, last: str, *, ranks: int) -> dict[str, Any]:
    """One that puts and settles a phase, and its row."""
    started(folder, last, ranks=ranks)
    row: dict[str, Any] = json.loads((folder / "row.json").read_text())
    assert row["ranks"] == ranks
    return row


def test_a_residual_outlives_a_change_of_ranks(tmp_path: Path) -> None:
    """Two ranks, one, two: what arrived and the last residual are the sum of the deltas."""
    move = torch.arange(24.0).reshape(4, 6).add(1).mul(0.3)
    arrived, last = torch.zeros(4, 6, dtype=torch.float64), "none"
    for number, ranks in enumerate((2, 1, 2), start=1):
        row = life(tmp_path, last, ranks=ranks)
        assert not row["dropped"]
        last = row["delta"]
        arrived += torch.tensor(row["sent"])
        left = torch.tensor(row["left"])
        assert left.abs().max() > 0
        assert torch.allclose(arrived + left, number * move.double(), rtol=2.0**-22, atol=0.0)
        assert not torch.allclose(arrived, number * move.double(), rtol=2.0**-22, atol=0.0)


def test_all_ranks_learn_that_rank_0_had_no_room_to_encode(tmp_path: Path) -> None:
    started(tmp_path, "none", "full", ranks=2)
    told = [(tmp_path / f"told-{rank}").read_text() for rank in (0, 1)]
    assert told[0] == told[1]
    assert "phase-000000: the device is out of memory" in told[0]
    assert not any((tmp_path / "checkpoints").iterdir())
