"""Smoke tests of real ranks: what is right passes, and every fault is a FAIL, soon."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pww.log import read_json_lines
from pww.smoke.book import concluded

pytestmark = pytest.mark.timeout(580)  # all tests are run once, for all that is asked of them
PROGRAM = Path(__file__).parent / "programs" / "smoke_ranks.py"
ROOT = Path(__file__).parents[2]
BOUND_S = 60.0
"""Far above what one takes on a busy machine, far below a collective's own patience."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smoke")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        capture_output=True, text=True, timeout=560, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "said").write_text(done.stdout + done.stderr)
    return folder


def verdict(ran: Path, name: str) -> str:
    """The last line, as a launcher that waited for the ranks would have it."""
    return concluded(ran / name, max(abs(code) for code in codes(ran, name)))


def codes(ran: Path, name: str) -> list[int]:
    found: list[int] = json.loads((ran / "ended.json").read_text())[name]["codes"]
    return found


def rows(ran: Path, name: str) -> dict[str, dict[str, Any]]:
    """Checks by what they are of; of the two about the outer step the one that has figures last."""
    return {f"{r['what']} {r['state']}": r for r in read_json_lines(ran / name / "checks.jsonl")}


@pytest.mark.parametrize("name", ["fsdp", "four", "one"])
def test_what_is_right_passes(name: str, ran: Path) -> None:
    assert verdict(ran, name) == "PASS", (ran / "said").read_text()[-3000:]
    assert not any(codes(ran, name))
    assert not [row for row in rows(ran, name).values() if row["state"] == "wrong"]
    assert (ran / name / "checks.txt").read_text().count("\n") == len(
        (ran / name / "checks.jsonl").read_text().splitlines()
    )
    assert not (ran / name / "known.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "moved", "how"),
    [
        ("fsdp", "0.5000", "nesterov lr 0.7 momentum 0.9, fsdp"),
        ("four", "1.5000", "sgd lr 1 momentum 0, ddp"),
    ],
)
def test_replicas_meet_and_move_by_what_is_known(
    name: str, moved: str, how: str, ran: Path
) -> None:
    found = rows(ran, name)
    assert f"moved by {moved} ({how})" in found["outer step right"]["told"]
    assert found["outer step right"]["figures"]["moved"] == pytest.approx(float(moved), abs=1e-6)
    assert found["all-reduce right"]["told"].startswith("exact over the ")
    assert "bit for bit" in found["theta right"]["told"]
    figures = found["outer step shown"]["figures"]
    inner_ms = found["inner step shown"]["figures"]["inner_step_ms"]
    for num in (10, 100, 500):
        share = figures["outer_step_ms"] / (num * inner_ms)
        assert figures[f"outer_overhead_h{num}"] == pytest.approx(share, rel=1e-2)


def test_one_replica_has_no_outer_step_and_says_so(ran: Path) -> None:
    found = rows(ran, "one")
    assert found["all-reduce right"]["told"] == "exact over all 2 ranks"
    assert "outer step unchecked" in found
    assert "overhead unchecked" in found
    assert found["inner step shown"]["figures"]["inner_step_ms"] > 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dies", "FAIL: checkpoint: rank 0: another rank of this allocation is gone"),
        ("wrong_sum", "FAIL: all-reduce: rank 1 has 3.00000024 where 3 is the sum over 2 rank"),
        ("wrong_exchange", "FAIL: outer step: rank 1 has it at 1, and 0.5 is where"),
        ("crossed", "FAIL: groups: rank 0 meets ranks [1, 0] for its place in the replicas, and "),
        ("misread", "FAIL: checkpoint: rank 1 reads other values from "),
        ("breaks", "FAIL: checkpoint: rank 1: ZeroDivisionError: the driver is broken"),
        ("goes_to_nan", "FAIL: training: rank 1 has a loss of nan: lower optim.lr, or "),
        ("drifts", "FAIL: theta: after an outer step rank 0 holds another theta than replica 1"),
        ("no_images", "FAIL: data: rank "),
    ],
)
def test_a_fault_is_a_fail_with_its_reason(name: str, reason: str, ran: Path) -> None:
    assert verdict(ran, name).startswith(reason)
    if name == "no_images":  # whoever comes first
        for rank in (0, 1):
            assert f"data: rank {rank}: there are no images here" in verdict(ran, name)
    assert "\n" not in verdict(ran, name)
    assert all(codes(ran, name))
    assert json.loads((ran / "ended.json").read_text())[name]["seconds"] < BOUND_S


def test_a_rank_that_hangs_is_found_and_named(ran: Path) -> None:
    """The one sleeps, the other waits for it in a collective: both say where they are."""
    text = verdict(ran, "hangs")
    assert text.startswith("FAIL: checkpoint: rank ")
    assert "rank 1 was not through after 4 s, it is at smoke_ranks.py:" in text
    assert "rank 0 was not through after 4 s, it is at circle.py:" in text
    assert codes(ran, "hangs") == [1, 1]
    assert json.loads((ran / "ended.json").read_text())["hangs"]["seconds"] < BOUND_S


def test_wrong_collectives_are_not_trained_with(ran: Path) -> None:
    for name in ("wrong_sum", "wrong_exchange", "crossed"):
        assert rows(ran, name)["training unchecked"]["told"] == "since collectives are wrong"
