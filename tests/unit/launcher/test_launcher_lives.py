"""A chain of jobs that gets nowhere is told from one that was short once or twice."""

from pathlib import Path

import pytest

from pww import worker
from pww.config import paths
from pww.config.load import compose
from pww.errors import StateError
from pww.launcher import lives


def checkpoint(run: Path, number: int) -> None:
    (run / "checkpoints" / f"phase-{number:06d}").mkdir(parents=True)


def test_as_many_lives_at_one_checkpoint_are_stuck(tmp_path: Path) -> None:
    told = []
    for _ in range(lives.LIVES + 1):
        lives.begin(tmp_path)
        told.append(lives.is_stuck(tmp_path))
    assert told == [False] * (lives.LIVES - 1) + [True, True]


def test_a_phase_that_was_finished_starts_the_count_anew(tmp_path: Path) -> None:
    for _ in range(lives.LIVES):
        lives.begin(tmp_path)
    checkpoint(tmp_path, 1)
    assert not lives.is_stuck(tmp_path), "this life made it"
    for _ in range(lives.LIVES - 1):
        lives.begin(tmp_path)
        assert not lives.is_stuck(tmp_path)
    lives.begin(tmp_path)
    assert lives.is_stuck(tmp_path)


@pytest.mark.parametrize("cut", ["", "{", "[1]", "{}", '{"checkpoint": "", "lives": []}'])
def test_a_damaged_count_starts_anew(tmp_path: Path, cut: str) -> None:
    for _ in range(lives.LIVES):
        lives.begin(tmp_path)
    (tmp_path / lives.FILE).write_text(cut)
    assert not lives.is_stuck(tmp_path)
    lives.begin(tmp_path)
    assert not lives.is_stuck(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot write .*gone/lives\.json: .*make room"):
        lives.begin(tmp_path / "gone")


def test_only_a_chain_that_gets_on_is_queued_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = compose(["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1"])
    marker = tmp_path / paths.REQUEUE
    for _ in range(lives.LIVES - 1):
        lives.begin(tmp_path)
    worker._leave_marker(tmp_path, config)
    assert marker.exists()
    marker.unlink()
    lives.begin(tmp_path)
    worker._leave_marker(tmp_path, config)
    assert not marker.exists()
    assert "3 jobs in a row ended without one phase of diloco.inner_steps=100" in caplog.text
    assert "a longer site.queue.time" in caplog.text
