"""The source's figure, ours, and whether they agree: computed from recorded runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, assert_never

from pww.errors import LabError
from pww.lab.report.cells import Cell, find
from pww.lab.report.composition import composition, sentence
from pww.lab.report.composition import measured as measured_cells
from pww.lab.report.interval import Interval, interval
from pww.lab.report.quantity import difference, measured, paired
from pww.lab.report.tables import Table, number, with_bounds
from pww.lab.report.verdict import judge
from pww.lab.studies.recipe import (
    Compared,
    ExcessRatio,
    Expected,
    Linear,
    Ordered,
    RuleBeatsRival,
)

Answer: TypeAlias = Literal["yes", "no", "cannot say", "not run"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One figure of the source beside ours."""

    expected: Expected
    ours: str
    agrees: Answer
    why: str


def agreement(expected: Expected, cells: Sequence[Cell]) -> Agreement:
    """What the recorded runs say of one figure."""
    try:
        ours, agrees, why = _checked(expected, cells)
    except LabError as fault:
        return Agreement(expected, "-", "not run", str(fault))
    return Agreement(expected, ours, agrees, why)


def agreements(found: Sequence[Agreement]) -> Table:
    """Of one study."""
    return Table(
        ("finding", "the source", "ours", "compared", "agrees"),
        tuple(
            (
                one.expected.what,
                one.expected.source,
                one.ours,
                one.expected.basis,
                one.agrees + (f" ({one.why})" if one.why else ""),
            )
            for one in found
        ),
    )


def _checked(expected: Expected, cells: Sequence[Cell]) -> tuple[str, Answer, str]:
    match expected.check:
        case Compared() as check:
            of = measured(cells, check.quantity, cell=check.cell, against=check.against)
            return with_bounds(of), *_answer(check.low, check.high, of)
        case ExcessRatio() as check:
            names = (check.cell, check.base, check.against, check.against_base)
            of = excess_ratio(*(find(cells, name) for name in names))
            return with_bounds(of), *_answer(check.low, check.high, of)
        case Linear() as check:
            of = r_squared(
                find(cells, check.base), [find(cells, cell) for cell in check.cells], check.at
            )
            return f"R² {with_bounds(of)}", *_answer(check.least, 1.0, of)
        case Ordered() as check:
            return ordered([find(cells, cell) for cell in check.cells])
        case RuleBeatsRival():
            return rule_beats_rival(cells)
        case other:
            assert_never(other)


def excess_ratio(one: Cell, base: Cell, other: Cell, other_base: Cell) -> Interval:
    """How many times as far `one` is above its base as `other` is above its own, seed by seed.

    Raises:
        LabError: not comparable, or the other is not above its base at every seed.
    """
    above = {seed: a - b for seed, a, b in paired(one, base)}
    below = {seed: a - b for seed, a, b in paired(other, other_base)}
    ratios = []
    for seed in sorted(above.keys() & below.keys()):
        if not below[seed] > 0:
            raise LabError(
                f"{other.label} is not above {other_base.label} at seed {seed}, so nothing is a "
                "multiple of that"
            )
        ratios.append(above[seed] / below[seed])
    return interval(ratios)


def r_squared(base: Cell, cells: Sequence[Cell], at: Sequence[float]) -> Interval:
    """R² of a line through the mean losses above `base`; low and high with one seed left out.

    Raises:
        LabError: fewer than three cells, not comparable, or one diverged.
    """
    if len(cells) < 3 or len(cells) != len(at):
        raise LabError("a line wants three cells or more, and a place for each")
    seeds = sorted(set(base.by_seed).intersection(*(cell.by_seed for cell in cells)))
    if not seeds:
        raise LabError("the cells have no seed in common; run all with the same lab.seeds")
    if any(cell.diverged for cell in (base, *cells)):
        raise LabError("a cell diverged: there is no line through infinity")

    def of(some: Sequence[int]) -> float:
        return _line(
            at,
            [
                math.fsum(cell.by_seed[seed] - base.by_seed[seed] for seed in some) / len(some)
                for cell in cells
            ],
        )

    whole = of(seeds)
    left_out = [of([s for s in seeds if s != seed]) for seed in seeds] if len(seeds) > 1 else []
    low, high = min([whole, *left_out]), max([whole, *left_out])
    return Interval(whole, math.nan, low, high, len(seeds))


def ordered(cells: Sequence[Cell]) -> tuple[str, Answer, str]:
    """Whether losses rise along the cells: yes and no only where the intervals say so.

    Raises:
        LabError: they do not compare.
    """
    ours = " < ".join(f"{c.label} {number(c.loss.mean, 3)}" for c in _by_loss(cells))
    steps = [(low, high, difference(high, low)) for low, high in pairwise(cells)]
    wrong = [(low, high) for low, high, step in steps if step.high < 0]
    if wrong:
        names = "; ".join(f"{high.label} is below {low.label}" for low, high in wrong)
        return ours, "no", names
    unsure = [f"{low.label} and {high.label}" for low, high, step in steps if not step.low > 0]
    if unsure:
        return ours, "cannot say", f"too close: {'; '.join(unsure)}"
    return ours, "yes", ""


def rule_beats_rival(cells: Sequence[Cell]) -> tuple[str, Answer, str]:
    """Whether the rule's error on held-out cells is the smaller one, on average and mostly.

    Raises:
        LabError: the cells determine no fit, or are too few to hold some out.
    """
    runs = measured_cells(cells)
    found = composition(runs) if runs else None
    if found is None or found.compared is None:
        why = "; ".join(found.why_not) if found is not None else ""
        raise LabError(why or "too few cells that differ in omega and H to hold some out")
    of = found.compared
    mostly, better = of.rule_better > of.splits / 2, of.rule_error < of.rival_error
    if mostly and better:
        return sentence(of), "yes", ""
    return sentence(of), "cannot say" if mostly or better else "no", ""


def _answer(low: float, high: float, of: Interval) -> tuple[Answer, str]:
    verdict, why = judge(low, high, of)
    match verdict:
        case "confirmed":
            return "yes", why
        case "refuted":
            return "no", why
        case _:
            inside = low <= of.mean <= high
            return "cannot say", f"{why}; the mean is {'inside' if inside else 'outside'}"


def _line(x: Sequence[float], y: Sequence[float]) -> float:
    """R² of the least-squares line; 0 where y has no spread."""
    num = len(x)
    mean_x, mean_y = math.fsum(x) / num, math.fsum(y) / num
    xx = math.fsum((a - mean_x) ** 2 for a in x)
    yy = math.fsum((b - mean_y) ** 2 for b in y)
    xy = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return xy * xy / (xx * yy) if xx > 0 and yy > 0 else 0.0


def _by_loss(cells: Sequence[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: cell.loss.mean)
