"""Whole runs of two replicas in one allocation: like two sites, exactly once, through any crash."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pww.central.audit import audit
from pww.log import read_json_lines

pytestmark = pytest.mark.timeout(580)  # many runs of several ranks, once for all tests
PROGRAM = Path(__file__).parent / "programs" / "together_ranks.py"
ROOT = Path(__file__).parents[2]
CRASHED = 9


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    folder = tmp_path_factory.mktemp("together")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        capture_output=True, text=True, timeout=560, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "said").write_text(done.stderr)
    return folder


def codes(runs: Path, name: str) -> list[list[int]]:
    """Exit codes of the ranks of each start of a run."""
    return [found for one, found in json.loads((runs / "codes.json").read_text()) if one == name]


def theta(run: Path, kind: str = "theta") -> dict[str, np.ndarray]:
    return load_file(max((run / "central" / "generations").glob("round-*")) / f"{kind}.safetensors")


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.tobytes() == other[name].tobytes(), name


def exactly_once(run: Path, windows: int) -> None:
    """By the ledger, and by what the loaders of merged phases drew."""
    books = audit(run)
    assert books.ok
    assert (books.leased, books.unleased) == (0, 0)
    assert books.exactly_once == -(-windows // 4)
    import sqlite3

    with sqlite3.connect(run / "central" / "ledger.sqlite") as ledger:
        merged = {d for (d,) in ledger.execute("SELECT delta FROM deltas WHERE outcome='merged'")}
    drawn: Counter[int] = Counter()
    for row in read_json_lines(run / "draws.jsonl"):
        if row["delta"] in merged:
            drawn.update(row["windows"])  # type: ignore[call-overload]
    assert drawn == Counter(range(windows))


def rows(run: Path, split: str) -> list[dict[str, object]]:
    return [row for row in read_json_lines(run / "metrics.jsonl") if row["split"] == split]


def test_blocks_are_contiguous_and_counterparts_meet_in_order(runs: Path) -> None:
    assert codes(runs, "places") == [[0] * 6]
    for rank in range(6):
        replica, place = divmod(rank, 2)
        assert json.loads((runs / f"place-{rank}.json").read_text()) == {
            "replica": replica, "place": [place, replica],
            "inner": [[2 * replica], [2 * replica + 1]],
            "outer": [[place], [2 + place], [4 + place]],
            "world": [place, 2], "everyone": 5,
        }  # fmt: skip


def test_as_two_sites_through_a_central(runs: Path) -> None:
    """The same windows, codec fp32: the same theta to the bit, and so to rounding with FSDP2."""
    assert codes(runs, "reference") == [[0]]
    assert codes(runs, "titan") == [[0, 0]]
    assert codes(runs, "titan-fsdp") == [[0] * 4]
    reference = Path((runs / "reference" / "end").read_text())
    sites = load_file(reference)
    first = load_file(runs / "reference" / "theta0.safetensors")
    equal(theta(runs / "titan"), sites)
    equal(theta(runs / "titan", "momentum"), load_file(reference.with_name("momentum.safetensors")))
    for name, values in theta(runs / "titan-fsdp").items():
        moved = np.abs(sites[name] - first[name]).max()
        assert np.abs(values - sites[name]).max() < 1e-3 * moved, name
    for name in ("titan", "titan-fsdp"):
        exactly_once(runs / name, 48)


def test_ranks_of_a_replica_change_nothing(runs: Path) -> None:
    assert codes(runs, "of-4") == [[0] * 4]
    equal(theta(runs / "of-4"), theta(runs / "whole"))


def test_a_corpus_that_does_not_divide(runs: Path) -> None:
    """The last lease has a block for one of two replicas: nobody hangs, nothing is left over."""
    assert codes(runs, "uneven") == [[0, 0]]
    exactly_once(runs / "uneven", 34)
    outer = rows(runs / "uneven", "outer")
    assert [row["contributors"] for row in outer] == [2, 2, 1]
    assert [row["phase_tokens"] for row in outer] == [16 * 16, 16 * 16, 2 * 16]
    entries = (runs / "uneven" / "checkpoints").glob("*/entry.json")
    partial = [json.loads(path.read_text())["offer"]["partial"] for path in sorted(entries)]
    assert partial == [False, True]


def test_one_replica_that_is_asked_to_stop_stops_all(runs: Path) -> None:
    first, then = codes(runs, "stopped")
    assert first == [130, 130]
    assert then == [0, 0]
    assert (runs / "stopped" / "gone").read_text() == ""  # while rank 0 said goodbye
    said = [(runs / "stopped" / f"said-{rank}").read_text() for rank in range(2)]
    assert all("steps of a phase, which is not delivered" in one for one in said)
    equal(theta(runs / "stopped"), theta(runs / "whole"))
    equal(theta(runs / "stopped", "momentum"), theta(runs / "whole", "momentum"))
    exactly_once(runs / "stopped", 48)


@pytest.mark.parametrize("where", ["draft", "complete", "close", "settle"])
def test_a_crash_anywhere_in_a_round(where: str, runs: Path) -> None:
    """A phase that is not durable is trained again, one that is counts once: the same theta."""
    name = f"crash-{where}"
    first, then = codes(runs, name)
    assert first[0] == CRASHED
    assert all(code != 0 for code in first)
    assert then == [0, 0]
    equal(theta(runs / name), theta(runs / "whole"))
    equal(theta(runs / name, "momentum"), theta(runs / "whole", "momentum"))
    exactly_once(runs / name, 48)


def test_a_disk_that_is_full_for_one_replica(runs: Path) -> None:
    """Every rank says which file; what was there before is gone on from."""
    first, then = codes(runs, "full")
    assert (first, then) == ([1, 1], [0, 0])
    for rank in range(2):
        said = (runs / "full" / f"said-{rank}").read_text()
        assert said.startswith("CheckpointError: cannot write ")
        assert "phase-000001.part/inner/1: No space left on device" in said
    equal(theta(runs / "full"), theta(runs / "whole"))
    exactly_once(runs / "full", 48)


def test_a_disk_that_is_full_for_theta(runs: Path) -> None:
    """Every rank says so, and what to do; the round before is gone on from."""
    first, then = codes(runs, "full-draft")
    assert (first, then) == ([1, 1], [0, 0])
    for rank in range(2):
        said = (runs / "full-draft" / f"said-{rank}").read_text()
        assert said.startswith("StateError: round 2 could not be written: [Errno 28] No space left")
        assert said.endswith("make room on that disk and start pww.train with resume=auto again")
    equal(theta(runs / "full-draft"), theta(runs / "whole"))
    exactly_once(runs / "full-draft", 48)


def test_a_resnet_of_two_replicas_comes_back_from_a_crash(runs: Path) -> None:
    """Parameters to the bit, and the statistics, by which loss and accuracy are measured."""
    assert codes(runs, "vision") == [[0] * 4]
    assert codes(runs, "vision-crash")[1] == [0] * 4
    equal(theta(runs / "vision-crash"), theta(runs / "vision"))
    exactly_once(runs / "vision", 48)
    exactly_once(runs / "vision-crash", 48)
    one, other = (rows(runs / name, "eval")[-1] for name in ("vision", "vision-crash"))
    assert (one["loss"], one["accuracy"]) == (other["loss"], other["accuracy"])
    assert one["held_out_tokens"] == 60


def test_residuals_come_back(runs: Path) -> None:
    assert codes(runs, "lossy") == [[0, 0]]
    assert codes(runs, "lossy-crash")[1] == [0, 0]
    equal(theta(runs / "lossy-crash"), theta(runs / "lossy"))
    whole = theta(runs / "whole")
    assert any((values != whole[name]).any() for name, values in theta(runs / "lossy").items())


def test_a_replica_that_is_killed_ends_the_job(runs: Path) -> None:
    (found,) = codes(runs, "dying")
    assert found[1] == CRASHED
    assert found[0] not in (0, 130)
    # by its closed connections; a collective would wait for an hour
    assert float((runs / "dying" / "seconds").read_text()) < 120
    said = (runs / "dying" / "said-0").read_text()
    assert "another rank of this allocation is gone; its own last lines say why" in said


def test_a_phase_that_goes_to_nan_in_one_replica_is_rejected_whole(runs: Path) -> None:
    """Its tokens are trained on again, from the same theta, and the run goes on."""
    assert codes(runs, "diverging") == [[0, 0]]
    outcomes = [(row["outcome"], row["reason"]) for row in rows(runs / "diverging", "outer")]
    assert [one for one, _ in outcomes] == ["merged", "rejected", "merged", "merged"]
    assert outcomes[1][1] == "it is not finite (nan or inf at the site)"
    exactly_once(runs / "diverging", 48)


def test_what_is_logged_of_an_outer_step(runs: Path) -> None:
    wanted = {
        "agreement", "merged_delta_norm", "avg_delta_norm", "drift_mean", "drift_max",
        "bytes_sent", "bytes_received", "phase_seconds", "exchange_seconds", "tokens",
    }  # fmt: skip
    found = rows(runs / "whole", "outer")
    assert len(found) == 3
    for row in found:
        assert wanted <= row.keys()
        assert row["bytes_sent"] == row["bytes_received"] == 4 * (5 * 3 + 5)
        assert row["contributors"] == 2
    assert [row["tokens"] for row in found] == [256, 512, 768]
