"""What the numbers say of a claim: its interval against the one that was measured.

confirmed: the measured interval lies inside the predicted one; refuted: the two do not meet;
inconclusive: they overlap, or there is no interval; open: nothing was measured yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pww.errors import LabError
from pww.lab.predictions import Prediction
from pww.lab.report.cells import Cell, find
from pww.lab.report.interval import Interval
from pww.lab.report.quantity import measured

Verdict: TypeAlias = Literal["confirmed", "refuted", "inconclusive", "open", "void"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A prediction, what was measured, and the verdict with its reason where it needs one."""

    prediction: Prediction
    measured: Interval | None
    verdict: Verdict
    why: str
    seeds: tuple[int, ...]


def judge(low: float, high: float, found: Interval) -> tuple[Verdict, str]:
    """Of one claim that the number lies between `low` and `high`."""
    if not found.is_known:
        return "inconclusive", "both diverged"
    if low <= found.low and found.high <= high:
        return "confirmed", ""
    if found.low > high or found.high < low:
        return "refuted", ""
    if found.num == 1:
        return "inconclusive", "one seed has no interval"
    return "inconclusive", "the intervals overlap"


def judged(
    predictions: Sequence[Prediction], cells: Sequence[Cell], void: dict[str, str]
) -> list[Judged]:
    """Every prediction of a study; `void` says by id which do not count, and why."""
    found = []
    for one in predictions:
        if one.id in void:
            found.append(Judged(one, None, "void", void[one.id], ()))
            continue
        try:
            seeds = frozenset.intersection(
                *(frozenset(find(cells, name).by_seed) for name in one.cells)
            )
        except LabError as fault:
            found.append(Judged(one, None, "open", str(fault), ()))
            continue
        try:
            value = measured(cells, one.quantity, cell=one.cell, against=one.against)
        except LabError as fault:
            found.append(Judged(one, None, "inconclusive", str(fault), ()))
            continue
        verdict, why = judge(one.low, one.high, value)
        found.append(Judged(one, value, verdict, why, tuple(sorted(seeds))))
    return found
