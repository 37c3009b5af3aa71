"""Waiting for queued runs: until the queue has forgotten them, and their folders say how it was."""

import math
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.errors import StateError
from pww.launcher import slurm, waiting
from pww.launcher.arrays import Job


def test_until_the_last_has_left_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [{"1_0", "1_1", "9"}, StateError("busy"), {"1_1"}, {"9"}]

    def queued() -> set[str]:
        found = looks.pop(0)
        if isinstance(found, StateError):
            raise found
        return found

    monkeypatch.setattr(slurm, "queued", queued)
    jobs = [Job(f"1_{n}", tmp_path / str(n)) for n in range(2)]
    for job in jobs:
        job.folder.mkdir()
    (jobs[0].folder / "finished").touch()
    rows = '{"split": "eval", "loss": 3.0}\n{"split": "train", "loss": 9.0}\n'
    (jobs[0].folder / "metrics.jsonl").write_text(rows + '{"split": "eval", "loss": 2.5}\n')
    clock = ManualClock()
    first, second = waiting.wait(jobs, clock=clock)
    assert looks == []
    assert (first.finished, first.objective, first.sentence) == (True, 2.5, "")
    assert not second.finished
    assert math.isnan(second.objective)
    assert second.sentence.startswith("job 1_1 ended before its run was finished; ")
    assert clock.monotonic() > 0


def test_a_scheduler_that_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def queued() -> set[str]:
        raise StateError("squeue: no answer")

    monkeypatch.setattr(slurm, "queued", queued)
    clock = ManualClock()
    with pytest.raises(StateError, match="squeue: no answer"):
        waiting.wait([Job("1", tmp_path)], clock=clock)
    assert waiting.SILENT_S < clock.monotonic() < waiting.SILENT_S + 2 * waiting.LAST_S


def test_nothing_to_wait_for_asks_nobody() -> None:
    assert waiting.wait([], clock=ManualClock()) == []
