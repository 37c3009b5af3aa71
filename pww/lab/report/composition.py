"""The composition rule and its rival on a study's own cells, where they have omega and H.

Cells that take part differ in nothing but an unbiased sparsifier (dense is omega = 0) and H. Cells
that determine no fit, such as a grid with one H, are refused with the reason instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pww.errors import ConfigError
from pww.lab.cells import text_of
from pww.lab.fits import Cell as Measured
from pww.lab.fits import Fit, fit, grouped, num_constants
from pww.lab.fits_compared import Comparison, compare
from pww.lab.report.cells import Cell, axes, shown
from pww.lab.report.tables import Table

PLACES = 4096
AXES = frozenset({"codec", "codec.keep", "diloco.inner_steps"})
RESAMPLES = 200
SPLITS = 300
SHARE = 1 / 3
"""Of the cells, that both laws are fitted to before the others are foretold."""


@dataclass(frozen=True, slots=True)
class Composition:
    """Both fits with the rule's judgement, or why there is none."""

    fits: tuple[Fit, ...]
    compared: Comparison | None
    why_not: tuple[str, ...]


def measured(cells: Sequence[Cell]) -> tuple[Measured, ...]:
    """Every run that takes part; () where cells differ in something else, or none has an omega."""
    rows = shown(cells)
    if not set(axes(rows)) <= AXES:
        return ()
    found = [
        Measured(omega, int(h), run.result.level)
        for cell in rows
        for run in cell.runs
        if (omega := _omega(run.config)) is not None and (h := _inner_steps(run.config)) > 0
    ]
    return tuple(found) if len({one.omega for one in found}) > 1 else ()


@cache
def composition(runs: tuple[Measured, ...]) -> Composition:
    """What the laws say of them."""
    fits: list[Fit] = []
    why_not: list[str] = []
    for law in ("rule", "rival"):
        try:
            fits.append(fit(runs, law=law, resamples=RESAMPLES))
        except ConfigError as fault:
            why_not += fault.faults
    compared = None
    if not why_not and round(SHARE * len(grouped(runs))) >= num_constants("rival"):
        try:
            compared = compare(runs, splits=SPLITS, fitted_share=SHARE)
        except ConfigError as fault:
            why_not += fault.faults
    return Composition(tuple(fits), compared, tuple(dict.fromkeys(why_not)))


def constants(found: Composition) -> Table:
    """Of both laws, with the intervals that resampling gives."""
    return Table(
        ("law", "constant", "value", "95 % by resampling", "error of the fit"),
        tuple(
            (
                one.law,
                name,
                f"{value:.4g}",
                "{:.4g} to {:.4g}".format(*one.intervals[name]),
                f"{100 * one.error:.2f} %",
            )
            for one in found.fits
            for name, value in one.constants.items()
        ),
    )


def sentence(found: Comparison) -> str:
    """Both errors on cells that neither law was fitted to."""
    return (
        f"rule {100 * found.rule_error:.2f} %, rival {100 * found.rival_error:.2f} %, the rule "
        f"better in {found.rule_better} of {found.splits} splits"
    )


def _omega(config: Mapping[str, Any]) -> float | None:
    """1/r - 1 of an unbiased sparsifier that keeps the share r; None of what has none."""
    codec = config.get("codec", {})
    match codec.get("kind"):
        case "fp32":
            return 0.0
        case "randomk" if not codec.get("feedback"):
            return PLACES / int(codec["keep"]) - 1
        case _:
            return None


def _inner_steps(config: Mapping[str, Any]) -> int:
    """H; 0 where there is none."""
    diloco = config.get("diloco") or {}
    return int(text_of(diloco.get("inner_steps", 0)))
