"""The tables of a study: losses, bytes, learning rates that were tried, predictions."""

import math
from collections.abc import Sequence

from pww.errors import LabError
from pww.lab.cells import text_of
from pww.lab.predictions import NOTHING
from pww.lab.records import TRAFFIC
from pww.lab.report.cells import Cell, axes, shown
from pww.lab.report.interval import Interval
from pww.lab.report.quantity import difference
from pww.lab.report.tables import Table, bounds, mean_and_spread, number, size, with_bounds
from pww.lab.report.verdict import Judged

SHOWN_BYTES = ("payload", "values", "indices", "all_gather", "ring", "star_up", "star_down")


def losses(cells: Sequence[Cell], against: Cell | None) -> Table:
    """A row for each cell, the best first, and what it differs from `against` by."""
    rows = sorted(shown(cells), key=lambda cell: (cell.task, _rank(cell.loss.mean)))
    versus = () if against is None else (f"loss - {against.label}",)
    header = ("cell", "method", "lr", "loss ± sd", "95 %", *versus, "seeds", "diverged", "steps")
    return Table(
        header,
        tuple(
            (
                cell.label,
                cell.runs[0].result.method,
                f"{cell.lr:g}{'' if cell.tuned else ' untuned'}",
                mean_and_spread(cell.loss),
                bounds(cell.loss),
                *(() if against is None else (_versus(cell, against),)),
                str(len(cell.runs)),
                str(cell.diverged),
                str(cell.runs[0].result.steps),
            )
            for cell in rows
        ),
    )


def traffic(cells: Sequence[Cell]) -> Table:
    """Bytes of one run, the mean of its seeds, and what a run took."""
    header = ("cell", *(name.replace("_", " ") for name in SHOWN_BYTES), "seconds")
    return Table(
        header,
        tuple(
            (
                cell.label,
                *(
                    size(_mean([run.result.bytes[name] for run in cell.runs]))
                    for name in SHOWN_BYTES
                ),
                f"{_mean([run.result.seconds for run in cell.runs]):.1f}",
            )
            for cell in shown(cells)
        ),
    )


def rates(cells: Sequence[Cell]) -> Table:
    """Every cell that was run at several rates, at each of them; the best is marked."""
    tried = [cell for cell in cells if sum(_kin(cell, one) for one in cells) > 1]
    return Table(
        ("cell", "lr", "loss ± sd", "seeds", "best"),
        tuple(
            (
                cell.label,
                f"{cell.lr:g}",
                mean_and_spread(cell.loss),
                str(len(cell.runs)),
                "best" if cell.tuned else "",
            )
            for cell in tried
        ),
    )


def claims(found: Sequence[Judged]) -> Table:
    """Every prediction, what was measured, and the verdict."""
    return Table(
        ("claim", "about", "predicted", "measured", "95 %", "seeds", "verdict"),
        tuple(
            (
                one.prediction.claim,
                _about(one),
                f"{one.prediction.low:g} to {one.prediction.high:g}",
                "-" if one.measured is None else number(one.measured.mean),
                "-" if one.measured is None else bounds(one.measured),
                str(len(one.seeds)),
                one.verdict + (f" ({one.why})" if one.why else ""),
            )
            for one in found
        ),
    )


def flat(cells: Sequence[Cell], against: Cell | None) -> Table:
    """Everything of every cell, tried rates included, one number a column."""
    names = axes(cells)
    header = (
        "task", "cell", "id", "method", *names, "lr", "tuned", "candidate", "seeds", "diverged",
        "loss_mean", "loss_sd", "loss_low", "loss_high", "against", "difference_mean",
        "difference_low", "difference_high", "steps", "tokens", "seconds",
        *(f"bytes_{name}" for name in TRAFFIC),
    )  # fmt: skip
    rows = []
    for cell in cells:
        first, loss = cell.runs[0].result, cell.loss
        versus = _difference(cell, against)
        rows.append(
            (
                cell.task, cell.label, cell.id, first.method,
                *(text_of(cell.overrides[n]) if n in cell.overrides else "" for n in names),
                repr(cell.lr), str(cell.tuned).lower(), str(cell.candidate).lower(),
                str(len(cell.runs)), str(cell.diverged),
                *(_exact(x) for x in (loss.mean, loss.sd, loss.low, loss.high)),
                "" if versus is None or against is None else against.label,
                *(
                    ("", "", "")
                    if versus is None
                    else tuple(_exact(x) for x in (versus.mean, versus.low, versus.high))
                ),
                str(first.steps), str(first.tokens),
                _exact(_mean([run.result.seconds for run in cell.runs])),
                *(_exact(_mean([run.result.bytes[n] for run in cell.runs])) for n in TRAFFIC),
            )
        )  # fmt: skip
    return Table(header, tuple(rows))


def each_run(cells: Sequence[Cell]) -> Table:
    """One row for each run: what all else was made of."""
    header = ("task", "cell", "seed", "lr", "tuned", "loss", "diverged", "folder")
    rows = [
        (
            cell.task, cell.label, str(run.result.seed), repr(run.result.lr),
            str(run.result.tuned).lower(), _exact(run.result.loss),
            str(run.result.diverged).lower(), run.folder.name,
        )
        for cell in cells
        for run in cell.runs
    ]  # fmt: skip
    return Table(header, tuple(rows))


def _kin(cell: Cell, other: Cell) -> bool:
    return (cell.id, cell.task) == (other.id, other.task)


def _difference(cell: Cell, against: Cell | None) -> Interval | None:
    """None where the two do not compare."""
    if against is None or cell is against:
        return None
    try:
        return difference(cell, against)
    except LabError:
        return None


def _versus(cell: Cell, against: Cell) -> str:
    found = _difference(cell, against)
    if found is None:
        return "" if cell is against else "-"
    return with_bounds(found)


def _about(one: Judged) -> str:
    what = one.prediction
    name = what.quantity.replace("_", " ")
    return f"{name} of {what.cell}" + (
        "" if what.against == NOTHING else f" against {what.against}"
    )


def _exact(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _rank(mean: float) -> float:
    return math.inf if math.isnan(mean) else mean
