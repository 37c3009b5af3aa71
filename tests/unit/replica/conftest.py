"""One process' ranks, a run folder and a theta: what the outbox' tests begin with."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import alone, theta_in


@pytest.fixture(scope="module")
def ranks():
    ranks = alone()
    yield ranks
    ranks.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def theta(tmp_path: Path):
    return theta_in(tmp_path / "theta")
