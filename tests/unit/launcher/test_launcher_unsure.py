"""What a launch leaves behind when Slurm's answer is no, is unknown, or cannot be noted."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.config import paths
from pww.config.load import compose
from pww.config.schema import Config
from pww.errors import ConfigError, StateError
from pww.launcher import arrays, runs, submit


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose `outputs` is a link, as on a site with a scratch, and Slurm's commands."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "outputs").symlink_to(tmp_path / "scratch")
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer(tmp_path, "scontrol", "MaxArraySize = 1001")
    answer(tmp_path, "squeue", "4711 N/A")
    return tmp_path


def answer(folder: Path, command: str, text: str, *, code: int = 0) -> None:
    script = folder / command
    script.write_text(f"#!/bin/bash\necho '{text}'\nexit {code}\n")
    script.chmod(0o755)


def queued(name: str) -> Config:
    return compose([
        "site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1", f"run.name={name}",
    ])  # fmt: skip


def folders(project: Path) -> Iterator[str]:
    return (path.parent.name for path in project.glob("scratch/*/config.yaml"))


def test_folders_of_a_refused_array_are_gone(project: Path) -> None:
    answer(project, "sbatch", "sbatch: error: invalid account", code=1)
    with pytest.raises(StateError, match="invalid account"):
        submit.submit([queued("x")], clock=ManualClock())
    assert list(folders(project)) == []


def test_folders_of_what_may_be_queued_stay(project: Path) -> None:
    answer(project, "sbatch", "thank you")
    with pytest.raises(StateError, match="'thank you', which names no job"):
        submit.submit([queued("x")], clock=ManualClock())
    assert list(folders(project)) == ["x"]


def test_a_job_that_cannot_be_noted_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(project, "sbatch", "Submitted batch job 4711")
    (project / "scratch" / arrays.JOBS).mkdir()
    with pytest.raises(
        StateError, match=r"^job 4711 is queued, but cannot be noted in .*make room"
    ):
        submit.submit([queued("x")], clock=ManualClock())
    assert capsys.readouterr().out.endswith("/outputs/x\n")
    assert list(folders(project)) == ["x"]


def test_a_run_in_the_queue_is_known_with_and_without_links(project: Path) -> None:
    answer(project, "sbatch", "Submitted batch job 4711")
    (job,) = submit.submit([queued("x")], clock=ManualClock())
    assert job.folder == project / "outputs" / "x"
    for typed in ("outputs/x", str(project / "outputs/x"), str(project / "scratch/x")):
        words = ["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1"]
        again = runs.settle(compose([*words, f"resume={typed}"]), frozenset({"site"}))
        with pytest.raises(ConfigError, match="its job 4711 is still in the queue; scancel 4711"):
            submit.submit([again], clock=ManualClock())
