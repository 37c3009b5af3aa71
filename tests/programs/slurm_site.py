"""A Slurm for tests, and the command line that submits to it: fixtures, which conftest.py imports.

Where Slurm is not installed they are skipped, unless PWW_SLURM=required says that it has to be.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_box import Box, missing

from pww import train
from pww.config import paths
from pww.log import read_json_lines

PROGRAMS = Path(__file__).resolve().parent


def started(longest_array: int = 1001) -> Iterator[Box]:
    lacking = missing()
    if lacking and os.environ.get("PWW_SLURM") == "required":
        pytest.fail(f"PWW_SLURM=required, and this machine lacks {', '.join(lacking)}")
    if lacking:
        pytest.skip(f"no Slurm here: {', '.join(lacking)} (apt-get install slurm-wlm munge)")
    box = Box(longest_array)
    try:
        box.start()
        yield box
    finally:
        box.stop()


@pytest.fixture(scope="session")
def box() -> Iterator[Box]:
    """Four nodes; an array has at most five tasks."""
    yield from started(longest_array=5)


@dataclass
class Submitter:
    """`pww.train` in this process, at a site whose queue is the box; runs land in `outputs`."""

    box: Box
    project: Path
    words: tuple[str, ...]

    @property
    def outputs(self) -> Path:
        return self.project / "outputs"

    def train(self, *words: str) -> int:
        return train.start([*self.words, *words])

    def jobs(self) -> list[dict[str, str]]:
        return read_json_lines(self.outputs / "jobs.jsonl")  # type: ignore[return-value]

    def log(self, folder: Path) -> str:
        """All logs of a run."""
        return "".join(
            f"--- {p.name}\n{p.read_text()}" for p in sorted((folder / "slurm").glob("*.log"))
        )


@pytest.fixture
def submitter(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Submitter]]:
    """submitter(does="finish", …): what the ranks do, see programs/slurm_rank.py."""
    for name in [n for n in os.environ if n.startswith(("PWW_", "SLURM_"))]:
        monkeypatch.delenv(name)
    for name, value in box.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(paths, "PROJECT", tmp_path)

    def make(does: str = "finish", *, ranks: int = 1, python: str = "") -> Submitter:
        monkeypatch.setenv("RANK_DOES", does)
        python = python or f"{sys.executable} {PROGRAMS / 'slurm_rank.py'}"
        words = (
            "site=slurm", "site.queue.partition=gpu", f"site.ranks_per_node={ranks}",
            f"site.queue.python='{python}'", "site.device=cpu", "site.cores_per_rank=2",
            "site.queue.node_gpus=8", "site.queue.time='00:05:00'",
        )  # fmt: skip
        return Submitter(box, tmp_path, words)

    yield make
    box.clear()
