"""What a reader must know before the numbers: sentences, the gravest first.

A comparison of cells whose learning rate nobody tuned can turn around when somebody does, so a
table that makes one says so.
"""

from collections.abc import Iterator, Sequence

from pww.lab.report.cells import Cell, shown
from pww.lab.study import Study, leaves


def notes(study: Study, cells: Sequence[Cell]) -> list[str]:
    """The sentences; [] where there is nothing to say."""
    rows = shown(cells)
    return [
        *_text(rows),
        *_rates(rows, cells),
        *_diverged(rows),
        *_seeds(rows),
        *_alike(rows),
        *_unfinished(study),
    ]


def _text(rows: Sequence[Cell]) -> Iterator[str]:
    runs = [run for cell in rows for run in cell.runs]
    if any(leaves(run.config).get("task.text") == "pydocs" for run in runs):
        yield (
            "The text is the documentation of Python: the figures of the sources are of another, "
            "so that they agree in order and sign at best."
        )


def _rates(rows: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    untuned = [cell.label for cell in rows if not cell.tuned]
    if len(rows) > 1 and len(untuned) == len(rows):
        yield (
            "No cell has a tuned learning rate: what is better here may be worse when each has its "
            "own best (lab.tune=lr:[…])."
        )
    elif untuned and len(rows) > 1:
        yield f"Tuned and untuned cells stand side by side; untuned: {', '.join(untuned)}."
    for cell in rows:
        tried = sorted(
            (one for one in cells if (one.label, one.task) == (cell.label, cell.task)),
            key=lambda one: one.lr,
        )
        if not cell.tuned:
            continue
        if len(tried) == 1:
            yield f"{cell.label}: is said to be tuned, but only one rate was recorded."
            continue
        better = [one for one in tried if one.loss.mean < cell.loss.mean and one.candidate]
        for one in better:
            yield (
                f"{cell.label}: the rate {cell.lr:g} counts as its best, but {one.lr:g} came to "
                "less."
            )
        if not better and cell.lr in (tried[0].lr, tried[-1].lr):
            yield (
                f"{cell.label}: its best rate, {cell.lr:g}, is at the end of those that were "
                "tried; a rate beyond may be better."
            )
    waiting = sorted({c.label for c in cells} - {c.label for c in rows})
    if waiting:
        yield (
            f"Tuning is unfinished, so these have no row: {', '.join(waiting)}; run them again "
            "with the same lab.tune."
        )


def _diverged(rows: Sequence[Cell]) -> Iterator[str]:
    for cell in rows:
        if cell.diverged:
            yield f"{cell.label}: {cell.diverged} of {len(cell.runs)} seeds diverged."


def _seeds(rows: Sequence[Cell]) -> Iterator[str]:
    single = [cell.label for cell in rows if len(cell.runs) == 1]
    if single:
        yield f"One seed has no interval: {', '.join(single)}; give lab.seeds=3 or more."
    sets = {tuple(cell.by_seed) for cell in rows}
    if len(sets) > 1:
        yield "Not all cells have the same seeds; comparisons use those that two have in common."


def _alike(rows: Sequence[Cell]) -> Iterator[str]:
    tasks = sorted({cell.task for cell in rows})
    if len(tasks) > 1:
        yield f"Losses of different tasks do not compare: {', '.join(tasks)}."
    # A run that diverged may have ended early
    budgets = sorted(
        {run.result.tokens for cell in rows for run in cell.runs if not run.result.diverged}
    )
    if len(budgets) > 1:
        yield f"Budgets differ: from {budgets[0]:,} to {budgets[-1]:,} tokens a run."
    codes = sorted({run.result.code for cell in rows for run in cell.runs})
    if len(codes) > 1:
        yield f"Runs of {len(codes)} versions of the code stand side by side: {', '.join(codes)}."


def _unfinished(study: Study) -> Iterator[str]:
    if study.unfinished:
        yield f"Unfinished, and in no row: {', '.join(study.unfinished)}."
    if study.jobs:
        yield (
            f"Queued and not ended well, so that runs may be missing: {', '.join(study.jobs)} (the "
            "logs are there, in slurm/); the same command queues them again."
        )
