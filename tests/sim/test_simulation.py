"""The deterministic simulation: what a share of seeds covers, and that a seed replays exactly."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulation.scenario import KINDS, Outcome
from simulation.suite import run, told

SHARE = (*range(78), 173, 177)
"""The last two: a site is killed that has a residual, which the next process needs."""


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return run(SHARE)


def test_every_law_holds_in_every_seed(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert not outcome.fault, told(outcome)


def test_every_kind_of_fault_was_injected(outcomes: list[Outcome]) -> None:
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.faults)
    assert [kind for kind in KINDS if not faults[kind]] == []
    assert set(faults) == set(KINDS), "a kind that nobody counts"


def test_leases_went_through_all_of_their_transitions(outcomes: list[Outcome]) -> None:
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen.update(outcome.seen)
    assert {
        "Granted", "Pinned", "Committed", "Raised", "Revived", "Promised", "Returned expired",
        "Returned rejected", "Returned taken over", "Returned left", "Returned stolen",
    } <= set(seen)  # fmt: skip


def test_processes_died_at_writes_of_files_and_of_the_ledger(outcomes: list[Outcome]) -> None:
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen.update(outcome.seen)
    sql = [f"central died at {word}" for word in ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT")]
    assert any(seen[death] for death in sql), "a fault layer that the code under test goes around"
    for kind in ("central", "site"):
        files = [f"{kind} died at {what}" for what in ("open", "write", "fsync", "rename")]
        assert any(seen[death] for death in files)


def test_replicas_went_on_while_their_deltas_travelled(outcomes: list[Outcome]) -> None:
    went_on = [outcome.seen["went on beside its delta"] for outcome in outcomes]
    assert sum(went_on) > len(SHARE) / 2
    assert any(n == 0 for n in went_on), "without overlap a phase starts from theta"


def test_residuals_outlived_processes_on_both_sides(outcomes: list[Outcome]) -> None:
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen.update(outcome.seen)
    for what in (
        "a site kept a residual", "a site's residual outlived its process",
        "the central kept a residual", "the central's residual outlived its process",
    ):  # fmt: skip
        assert seen[what], what


def test_the_simulation_saw_something(outcomes: list[Outcome]) -> None:
    assert sum(outcome.draws for outcome in outcomes) > 10 * len(SHARE)
    assert sum(outcome.rounds for outcome in outcomes) > 2 * len(SHARE)
    assert sum(outcome.audits for outcome in outcomes) > len(SHARE)


def test_a_seed_replays_exactly() -> None:
    first, second, other = run((7, 7, 8))
    assert first == second
    assert other.digest != first.digest


def test_a_seed_replays_exactly_in_another_process() -> None:
    script = Path(__file__).parent / "run.py"
    done = subprocess.run(
        [sys.executable, str(script), "seed=7"], capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONHASHSEED": "12345"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["digest"] == run((7,))[0].digest


def test_a_run_without_faults_needs_no_second_process() -> None:
    (outcome,) = run((11,), faults=False)
    assert not outcome.fault, told(outcome)
    assert set(outcome.faults) <= {"wall_skew", "slow_write", "reordered", "batch"}
