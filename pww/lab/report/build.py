"""What a study's report says, from its recorded runs alone: read, computed, and nothing written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pww.errors import LabError
from pww.lab.cells import SHORT, common, text_of
from pww.lab.log import seal_faults
from pww.lab.predictions import written
from pww.lab.report.agreement import Agreement, agreement, agreements
from pww.lab.report.cells import Cell, cells_of, find, shown
from pww.lab.report.composition import (
    SHARE,
    Composition,
    composition,
    constants,
    measured,
    sentence,
)
from pww.lab.report.figures import Drawing, figures
from pww.lab.report.losses import claims, each_run, flat, losses, rates, traffic
from pww.lab.report.notes import notes
from pww.lab.report.tables import Table
from pww.lab.report.verdict import Judged, judged
from pww.lab.studies.recipe import Recipe
from pww.lab.study import Study, read_study


@dataclass(frozen=True, slots=True)
class Report:
    """The report, and what was wrong with the study."""

    text: str
    tables: Mapping[str, Table]  # by the name of its file
    drawings: Mapping[str, Drawing]
    faults: tuple[str, ...]
    judged: tuple[Judged, ...]
    agreements: tuple[Agreement, ...]


def build(folder: Path, *, against: str, recipe: Recipe | None) -> Report:
    """The report of the study in `folder`.

    Args:
        folder: the study's.
        against: the cell that losses are compared with; "": the recipe's, else the one without
            overrides, else none.
        recipe: the study's, if it is one of those that come with the lab.

    Raises:
        LabError: nothing to report, or no such cell.
    """
    study = read_study(folder)
    cells = cells_of(study.runs)
    base = _base(cells, against, recipe)
    void, changed = seal_faults(folder, study.runs)
    faults = (*study.faults, *changed)
    found = judged(written(folder)[0], cells, void)
    agreed = tuple(agreement(one, cells) for one in recipe.expected) if recipe else ()
    drawings = figures(study.name, cells, base)
    return Report(
        text=_text(study, cells, base, faults, found, agreed, drawings, recipe),
        tables={"table.csv": flat(cells, base), "runs.csv": each_run(cells)},
        drawings=drawings,
        faults=faults,
        judged=tuple(found),
        agreements=agreed,
    )


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
    drawings: Mapping[str, Drawing],
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
        words = (f"{SHORT.get(key, key)}={text_of(value)}" for key, value in shared.items())
        parts.append(f"All cells: {', '.join(words)}.\n")
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
    if any(run.result.bytes["payload"] for cell in rows for run in cell.runs):
        parts.append("## Bytes of one worker in a run\n")
        parts.append(traffic(cells).markdown())
    if runs := measured(cells):
        parts.append("## Composition: loss against omega and H\n")
        parts += _composition(composition(runs))
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


def _composition(found: Composition) -> list[str]:
    """What both laws came to, or why they did not."""
    parts = ["rule: L0 + a omega (H/16)^b. rival: L0 + a omega^p + c (H/16)^q.\n"]
    if found.why_not:
        parts.append("".join(f"- No fit: {one}\n" for one in found.why_not))
    if found.fits:
        parts.append(constants(found).markdown())
    if found.compared is not None:
        parts.append(
            f"Error on held-out cells, fitted to {SHARE:.0%} of them: {sentence(found.compared)}.\n"
        )
    return parts
