"""A share of the seeds of the simulation; files are what the test workers divide among them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulation.suite import BLOCK, obeys


@pytest.mark.parametrize("first", range(2000, 2000 + 5 * BLOCK, BLOCK))
def test_every_law_holds(first: int) -> None:
    obeys(first)
