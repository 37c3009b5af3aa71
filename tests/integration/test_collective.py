"""DiLoCo inside one allocation: its laws on real gloo groups, with DDP and FSDP2, k = 1, 2, 4."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


def launch(folder: Path, *, ranks: int, what: str = "laws") -> tuple[list[int], str]:
    """Exit codes of the ranks, and what they said."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "collective_ranks.py"), str(folder), str(ranks), what],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "codes.json").read_text()), done.stderr


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_laws(ranks: int, tmp_path: Path) -> None:
    """Every scenario of the program, each rank's own finding."""
    codes, said = launch(tmp_path, ranks=ranks)
    assert codes == [0] * ranks, said[-3000:]
    found = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in range(ranks)]
    wrong = {
        f"{name} on rank {r}": text
        for r, row in enumerate(found)
        for name, text in row.items()
        if text
    }
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    assert all(row.keys() == found[0].keys() for row in found)
    assert found[0], "nothing was tried"


def test_a_replica_that_dies_ends_the_others_with_a_sentence(tmp_path: Path) -> None:
    codes, said = launch(tmp_path, ranks=4, what="killed")
    assert codes[3] == 9
    assert all(code != 0 for code in codes)
    assert "another rank of this allocation is gone; its own last lines say why" in said
