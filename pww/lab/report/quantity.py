"""Numbers that a claim can be about, each with its interval over the seeds.

Two cells are compared seed by seed: the same seed has the same start and the same order of the
data, so what the two have in common cancels.
"""

import math
from collections.abc import Sequence

from pww.errors import LabError
from pww.lab.predictions import NOTHING, Quantity
from pww.lab.report.cells import Cell, find
from pww.lab.report.interval import Interval, interval, mapped


def measured(cells: Sequence[Cell], quantity: Quantity, *, cell: str, against: str) -> Interval:
    """The quantity and its interval.

    Raises:
        LabError: a cell has no finished run, or the two cannot be compared.
    """
    one = find(cells, cell)
    if against == NOTHING:
        return share_diverged(one) if quantity == "diverged" else one.loss
    other = find(cells, against)
    return difference(one, other) if quantity == "loss_difference" else ratio(one, other)


def share_diverged(cell: Cell) -> Interval:
    """The share of the seeds that diverged, which is counted and not estimated."""
    share = cell.diverged / len(cell.runs)
    return Interval(share, math.nan, share, share, len(cell.runs))


def difference(one: Cell, other: Cell) -> Interval:
    """Loss of one - loss of the other, over the seeds that both have.

    Raises:
        LabError: of two tasks, or no seed in common.
    """
    return interval([a - b for _, a, b in paired(one, other)])


def ratio(one: Cell, other: Cell) -> Interval:
    """Loss of one / loss of the other: the geometric mean, and the interval of its logarithm.

    Raises:
        LabError: of two tasks, no seed in common, or a loss that is not above zero.
    """
    logs = []
    for _, a, b in paired(one, other):
        if a <= 0 or b <= 0:
            raise LabError(
                f"{one.label} / {other.label}: a ratio wants losses above zero, and there is "
                f"{min(a, b):g}; take loss_difference"
            )
        logs.append(math.log(a) - math.log(b))
    return mapped(interval(logs), math.exp)


def paired(one: Cell, other: Cell) -> list[tuple[int, float, float]]:
    """Seed and the losses of both, for the seeds that both have.

    Raises:
        LabError: of two tasks, or no seed in common.
    """
    if one.task != other.task:
        raise LabError(
            f"{one.label} is of task {one.task}, {other.label} of {other.task}: their losses do "
            "not compare"
        )
    mine, theirs = one.by_seed, other.by_seed
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        raise LabError(
            f"{one.label} and {other.label} have no seed in common; run both with "
            "the same lab.seeds"
        )
    return [(seed, mine[seed], theirs[seed]) for seed in seeds]
