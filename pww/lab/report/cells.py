"""The runs of a study as the rows of its table: one for each cell and way of choosing its rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pww.errors import LabError
from pww.lab.cells import Value, parse_cell, text_of
from pww.lab.records import Run
from pww.lab.report.interval import Interval, interval

AT = "@"
"""`H=16@0.003`: that cell at that rate, tuned or not."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs that differ in nothing but their seed."""

    id: str
    task: str
    lr: float
    tuned: bool
    candidate: bool
    runs: tuple[Run, ...]  # by seed

    @property
    def overrides(self) -> Mapping[str, Value]:
        """What makes the cell."""
        return self.runs[0].result.cell

    @property
    def by_seed(self) -> dict[int, float]:
        """Loss by seed; infinity where it diverged."""
        return {run.result.seed: run.result.level for run in self.runs}

    @property
    def loss(self) -> Interval:
        """Of its seeds."""
        return interval(list(self.by_seed.values()))

    @property
    def diverged(self) -> int:
        """How many of its seeds did."""
        return sum(run.result.diverged for run in self.runs)

    @property
    def name(self) -> str:
        """The id, and for a rate among several, the rate."""
        return f"{self.id}{AT}{self.lr:g}" if self.candidate else self.id


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Every cell at every rate that it was run at, in the order of task, id and rate."""
    groups: dict[tuple[str, str, float], list[Run]] = {}
    for run in runs:
        key = (run.result.task, run.result.id, run.result.lr)
        groups.setdefault(key, []).append(run)
    found = []
    for (task, name, lr), group in sorted(groups.items()):
        group.sort(key=lambda run: run.result.seed)
        found.append(
            Cell(
                name,
                task,
                lr,
                tuned=any(run.result.tuned for run in group),
                candidate=all(run.result.candidate for run in group),
                runs=tuple(group),
            )
        )
    return found


def shown(cells: Sequence[Cell]) -> list[Cell]:
    """The rows of the main table: what was tried while tuning is left to the table of rates."""
    return [cell for cell in cells if not cell.candidate]


def find(cells: Sequence[Cell], reference: str) -> Cell:
    """The cell that `codec=topk,H=16` names, at its tuned rate, or `…@0.003` at that one.

    Raises:
        LabError: there is none, or several, and which there are.
    """
    text, at, rate = reference.partition(AT)
    name = parse_cell(text)
    if at:
        try:
            lr = float(rate)
        except ValueError:
            raise LabError(f"{reference}: {rate} is no learning rate") from None
        found = [cell for cell in cells if cell.id == name and cell.lr == lr]
    else:
        found = [cell for cell in shown(cells) if cell.id == name]
        tuned = [cell for cell in found if cell.tuned]
        found = tuned or found
    if len(found) == 1:
        return found[0]
    if not found:
        names = sorted({cell.name for cell in cells}) if at else [c.id for c in shown(cells)]
        there = ", ".join(dict.fromkeys(names)) or "none"
        raise LabError(f"no finished run of the cell {reference}; there are {there}")
    several = ", ".join(f"{cell.id}{AT}{cell.lr:g} ({cell.task})" for cell in found)
    raise LabError(f"{reference} is several cells: {several}; say which rate, as in {name}@0.003")


def axes(cells: Sequence[Cell]) -> list[str]:
    """The overrides in which the cells differ, in the order of their keys."""
    keys = sorted({key for cell in cells for key in cell.overrides})
    return [
        key
        for key in keys
        if len({text_of(c.overrides[key]) if key in c.overrides else None for c in cells}) > 1
    ]
