"""DiLoCo inside one allocation: its laws on real gloo groups, with DDP and FSDP2, k = 1, 2, 4."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(580)  # many runs of several ranks, once for all tests
PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
Ran = tuple[Path, dict[str, list[int]], str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Folder of the findings, exit codes of the ranks, and what they said."""
    folder = tmp_path_factory.mktemp("collective")
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "collective_ranks.py"), str(folder)],
        capture_output=True, text=True, timeout=560, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads((folder / "codes.json").read_text()), done.stderr


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_laws(ranks: int, ran: Ran) -> None:
    """Every scenario of the program, each rank's own finding."""
    folder, codes, said = ran
    assert codes[str(ranks)] == [0] * ranks, said[-3000:]
    found = [json.loads((folder / f"{ranks}-{r}.json").read_text()) for r in range(ranks)]
    wrong = {
        f"{name} on rank {r}": text
        for r, row in enumerate(found)
        for name, text in row.items()
        if text
    }
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    assert all(row.keys() == found[0].keys() for row in found)
    assert found[0], "nothing was tried"


def test_a_replica_that_dies_ends_the_others_with_a_sentence(ran: Ran) -> None:
    _, codes, said = ran
    assert codes["killed"][3] == 9
    assert all(code != 0 for code in codes["killed"])
    assert "another rank of this allocation is gone; its own last lines say why" in said
