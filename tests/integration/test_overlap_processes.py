"""`diloco.overlap` in real processes: sharded weights over ranks, and sites that are killed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import NursedProject
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from federation import Federation, mid_phase

from pww.central.audit import audit
from pww.central.ledger import Ledger
from pww.wire import Offer

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "overlap_ranks.py"
PHASES = 5
State = dict[str, np.ndarray]


def test_sharded_weights_move_with_theta(tmp_path: Path, free_ports: tuple[int, int]) -> None:
    """Two ranks of torchtitan: every start, and every theta, from the phases' ends alone."""
    meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports[0])}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)], text=True, stderr=subprocess.PIPE,
            env={**os.environ, **meet, "RANK": rank, "PYTHONPATH": str(ROOT),
                 "OMP_NUM_THREADS": "1"},
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    books = audit(tmp_path / "run")
    assert books.ok
    assert (books.exactly_once, books.merges) == (10, PHASES)

    def state(name: str) -> State:
        found: State = load_file(tmp_path / name)
        return found

    starts = [state(f"start-{n}") for n in range(1, PHASES + 1)]
    ends = [state(f"end-{n}") for n in range(1, PHASES + 1)]
    thetas = [state(f"theta-{n}") for n in range(PHASES + 1)]
    momentum = {name: np.zeros_like(value) for name, value in thetas[0].items()}
    for name, first in thetas[0].items():
        assert np.array_equal(starts[0][name], first)
        assert np.array_equal(starts[1][name], ends[0][name]), "it goes on from where it was"
        assert not np.array_equal(starts[1][name], thetas[1][name])
        here = ends[0][name]
        for n in range(PHASES):
            if n > 0:  # based on the merge of the delta before, which came while this one was made
                here = thetas[n][name] + (ends[n][name] - starts[n][name])
            if n + 1 < PHASES:
                assert np.array_equal(starts[n + 1][name], here), "bit for bit"
            delta = (thetas[n][name] - here).astype(float)
            momentum[name] = 0.9 * momentum[name] + delta
            outer = thetas[n][name] - 0.7 * (delta + 0.9 * momentum[name])
            assert thetas[n + 1][name] == pytest.approx(outer, abs=1e-6)


def test_a_site_that_overlaps_is_killed_and_nothing_is_lost(
    nursed: NursedProject, free_ports: tuple[int, int]
) -> None:
    federation = Federation(
        nursed, free_ports, "diloco.overlap=true", "codec=bf16", "data.max_windows=640"
    )
    central = federation.central()
    a = federation.site("a", STEP_S="0.03")
    a.until(lambda: federation.rows("a", "outer"))
    a.until(lambda: mid_phase(federation, "a"))
    a.kill()  # a delta was sent, and the next phase runs
    again = federation.site("a", STEP_S="0")
    assert [again.wait(), central.wait()] == [0, 0]
    federation.check_exactly_once()
    assert "is dropped" not in again.text()
    folder = federation.project.outputs
    assert not list(folder.glob("*/sent*"))
    # in the order of the file: the next phase's first step comes before a delta's verdict
    order = [
        (row["split"], row.get("phase_step"))
        for row in federation.lines("a")
        if row["split"] == "outer" or row.get("phase_step") == 1
    ]
    first_verdict = order.index(("outer", None))
    assert order[:first_verdict] == [("train", 1), ("train", 1)]
    ledger = Ledger.read_only(folder / "central" / "central" / "ledger.sqlite")
    offers = [
        (int(str(number)), Offer.model_validate_json(str(text)))
        for number, text in ledger.rows(
            "SELECT round, offer FROM deltas WHERE outcome = 'merged' ORDER BY round, delta"
        )
    ]
    ledger.close()
    before = 0
    for number, offer in offers:
        assert offer.base_round >= before, "its base holds its replica's last merge"
        before = number
