"""A study's `report/` folder: rebuilt from its recorded runs, the same bytes for the same runs.

    table.md    what to know first, losses, bytes, rates, predictions, the source's figures
    table.csv   one row a cell; runs.csv: one row a run
    *.svg *.png figures

Files of an earlier report that this one does not have are removed; runs and log are not touched,
but for outcomes, which are added to the log.
"""

import math
from pathlib import Path

from pww.errors import LabError
from pww.folder import write_durably
from pww.lab.log import note_outcome
from pww.lab.report.build import Report, build
from pww.lab.report.style import wants_matplotlib
from pww.lab.report.verdict import Judged
from pww.lab.studies.recipe import Recipe

FOLDER = "report"
MADE = ("*.md", "*.csv", "*.svg", "*.png")


def write_report(folder: Path, *, against: str, recipe: Recipe | None) -> Report:
    """Builds the report of the study in `folder`, writes it, and notes outcomes in the log.

    Raises:
        LabError: nothing to report, no such cell, or no matplotlib (the tables are there then).
    """
    report = build(folder, against=against, recipe=recipe)
    into = folder / FOLDER
    into.mkdir(exist_ok=True)
    texts = {name: table.csv() for name, table in report.tables.items()}
    texts["table.md"] = report.text
    for name, text in texts.items():
        write_durably(into / name, text.encode())
    for one in report.judged:
        if one.verdict != "open":
            note_outcome(folder, outcome(one))
    missing = wants_matplotlib()
    if not missing:
        for draw in report.drawings.values():
            draw(into)
    drawn = {} if missing else report.drawings
    ours = {*texts, *(f"{name}.{kind}" for name in drawn for kind in ("svg", "png"))}
    for old in {old for pattern in MADE for old in into.glob(pattern)}:
        if old.name not in ours:
            old.unlink()
    if missing:
        raise LabError(f"{missing} (the tables are in {into})")
    return report


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
