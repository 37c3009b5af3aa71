"""A sweeper of Hydra that wants to know how its jobs ended, before it chooses the next."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pww.config import paths

ROOT = Path(__file__).resolve().parents[2]
SWEEPER = ROOT / "tests" / "programs" / "sweeper"
WORDS = ("hydra/sweeper=probing", "seed=interval(1,20)", "-m")


def sweep(site, *words: str) -> "subprocess.CompletedProcess[str]":
    """As a user does it: Hydra looks for plug-ins once in a process."""
    root = f"run.root={site.outputs}"
    return subprocess.run(
        [sys.executable, "-m", "pww.train", *site.words, *WORDS, root, *words], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SWEEPER}:{ROOT}"}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip


def test_an_optimising_sweeper_learns_the_losses(
    submitter: Callable, tmp_path: Path, monkeypatch
) -> None:
    site = submitter("objective")
    monkeypatch.setattr(paths, "PROJECT", ROOT)
    notes = f"hydra.sweeper.notes={tmp_path}/notes.json"
    done = sweep(site, "launcher.wait=true", notes)
    assert done.returncode == 0, done.stderr
    jobs = site.jobs()
    assert len({job["folder"] for job in jobs}) == 3
    assert json.loads((tmp_path / "notes.json").read_text()) == [1.0, 0.5, 1 / 11]
    assert len({job["job"].partition("_")[0] for job in jobs}) == 2, "a batch is an array"


def test_it_has_to_wait_for_them(submitter: Callable, tmp_path: Path) -> None:
    site = submitter()
    done = sweep(site, f"hydra.sweeper.notes={tmp_path}/notes.json")
    assert done.returncode == 2
    assert done.stderr == (
        "hydra/sweeper=probing: chooses the next job by the loss of those before; give "
        "launcher.wait=true\n"
    )
    assert site.jobs() == []


def test_a_job_that_fails_is_told_to_it(submitter: Callable, tmp_path: Path) -> None:
    site = submitter("raise", ranks=2)
    done = sweep(site, "launcher.wait=true", f"hydra.sweeper.notes={tmp_path}/notes.json")
    assert done.returncode == 1
    assert "ended before its run was finished" in done.stderr
    assert len(site.jobs()) == 2
