"""Seeds run quietly, and the words for one that failed."""

import logging
from collections.abc import Iterable

from simulation.scenario import Outcome, run_seed


def run(seeds: Iterable[int], *, faults: bool = True) -> list[Outcome]:
    """The outcomes, without pww's log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return [run_seed(seed, faults=faults) for seed in seeds]
    finally:
        logging.disable(before)


def told(outcome: Outcome) -> str:
    """What a person needs to go on with a failed seed."""
    again = f"again: python tests/sim/run.py seed={outcome.seed} trace=1"
    return "\n".join((*outcome.last, outcome.fault, again))
