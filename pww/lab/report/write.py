"""A study's `report/` folder: rebuilt from its recorded runs, the same bytes for the same runs.

    table.md    what to know first, losses, bytes, rates, predictions, the source's figures
    table.csv   one row a cell; runs.csv: one row a run
    *.svg *.png figures

Files of an earlier report that this one does not have are removed; runs and log are not touched,
but for outcomes, which are added to the log.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pww.errors import LabError
from pww.folder import write_durably
from pww.lab.cells import cell_id, common
from pww.lab.log import note_outcome, seal_faults
from pww.lab.predictions import written
from pww.lab.report.agreement import Agreement, agreement, agreements
from pww.lab.report.cells import Cell, cells_of, find, shown
from pww.lab.report.figures import figures
from pww.lab.report.losses import claims, each_run, flat, losses, rates, traffic
from pww.lab.report.notes import notes
from pww.lab.report.verdict import Judged, judged
from pww.lab.studies.recipe import Recipe
from pww.lab.study import Study, read_study

FOLDER = "report"
MADE = ("*.md", "*.csv", "*.svg", "*.png")


@dataclass(frozen=True, slots=True)
class Report:
    """What was written, and what was wrong with the study."""

    folder: Path
    text: str
    faults: tuple[str, ...]
    agreements: tuple[Agreement, ...]


def write_report(folder: Path, *, against: str, recipe: Recipe | None) -> Report:
    """Builds the report of the study in `folder`.

    Args:
        folder: the study's.
        against: the cell that losses are compared with; "": the recipe's, else the one without
            overrides, else none.
        recipe: the study's, if it is one of those that come with the lab.

    Raises:
        LabError: nothing to report, no such cell, or no matplotlib (the tables are there then).
    """
    study = read_study(folder)
    cells = cells_of(study.runs)
    base = _base(cells, against, recipe)
    void, changed = seal_faults(folder, study.runs)
    faults = (*study.faults, *changed)
    found = judged(written(folder)[0], cells, void)
    agreed = tuple(agreement(one, cells) for one in recipe.expected) if recipe else ()
    into = folder / FOLDER
    into.mkdir(exist_ok=True)
    tables = {"table.csv": flat(cells, base), "runs.csv": each_run(cells)}
    for name, table in tables.items():
        write_durably(into / name, table.csv().encode())
    for one in found:
        if one.verdict != "open":
            note_outcome(folder, outcome(one))
    try:
        drawings = figures(into, study.name, cells, base)
        missing: LabError | None = None
    except LabError as fault:
        drawings, missing = [], fault
    text = _text(study, cells, base, faults, found, agreed, drawings, recipe)
    write_durably(into / "table.md", text.encode())
    ours = {
        "table.md",
        *tables,
        *(f"{name}.{kind}" for name in drawings for kind in ("svg", "png")),
    }
    for old in {old for pattern in MADE for old in into.glob(pattern)}:
        if old.name not in ours:
            old.unlink()
    if missing is not None:
        raise LabError(f"{missing} (the tables are in {into})")
    return Report(into, text, faults, agreed)


def outcome(one: Judged) -> dict[str, object]:
    """The log's row."""
    found = one.measured
    return {
        "prediction": one.prediction.id,
        "verdict": one.verdict,
        "why": one.why,
        "mean": math.nan if found is None else found.mean,
        "low": math.nan if found is None else found.low,
        "high": math.nan if found is None else found.high,
        "seeds": list(one.seeds),
    }


def _base(cells: Sequence[Cell], against: str, recipe: Recipe | None) -> Cell | None:
    if against:
        return find(cells, against)
    for name in (recipe.against if recipe else "base", "base"):
        try:
            return find(cells, name)
        except LabError:
            continue
    return None


def _text(
    study: Study,
    cells: Sequence[Cell],
    base: Cell | None,
    faults: Sequence[str],
    found: Sequence[Judged],
    agreed: Sequence[Agreement],
    drawings: Sequence[str],
    recipe: Recipe | None,
) -> str:
    rows = shown(cells)
    tasks = ", ".join(sorted({cell.task for cell in cells}))
    parts = [f"# Study {study.name}\n"]
    if recipe is not None:
        parts.append(f"{recipe.about}\n")
    parts.append(f"Task {tasks or '-'}; {len(study.runs)} finished runs, {len(rows)} cells.\n")
    shared = (
        common(cell.overrides for cell in cells) if len({cell.id for cell in cells}) > 1 else {}
    )
    if shared:
        parts.append(f"All cells: {cell_id(shared).replace(',', ', ')}.\n")
    if faults:
        parts.append("## Left out, or changed\n")
        parts.append("".join(f"- {one}\n" for one in faults))
    if said := notes(study, cells):
        parts.append("## Read this first\n")
        parts.append("".join(f"- {one}\n" for one in said))
    if rows:
        parts.append("## Losses\n")
        parts.append(
            "Held-out, at the end. ± is the spread of the seeds, 95 % the interval of their mean "
            "(Student's t); differences are taken seed by seed.\n"
        )
        parts.append(losses(cells, base).markdown())
        parts.append("## Bytes of a run\n")
        parts.append(traffic(cells).markdown())
    if (tried := rates(cells)).rows:
        parts.append("## Learning rates\n")
        parts.append(tried.markdown())
    if found:
        parts.append("## Predictions\n")
        parts.append(claims(found).markdown())
    if agreed:
        parts.append("## The source's figures\n")
        parts.append(agreements(agreed).markdown())
    if drawings:
        parts.append("## Figures\n")
        parts.append("".join(f"![{one}]({one}.svg)\n" for one in drawings))
    return "\n".join(parts)
