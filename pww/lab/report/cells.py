"""The runs of a study as the rows of its table: one for each cell and way of choosing its rate."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pww.errors import LabError
from pww.lab.cells import AT, Value, cell_id, common, rate_of, reference
from pww.lab.records import Run
from pww.lab.report.interval import Interval, interval


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs that differ in nothing but their seed."""

    id: str
    task: str
    label: str  # its overrides that not all cells of the study have
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
        """The label, and for a rate among several, the rate."""
        return f"{self.label}{AT}{self.lr:g}" if self.candidate else self.label


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Every cell at every rate that it was run at, in the order of task, id and rate."""
    groups: dict[tuple[str, str, float], list[Run]] = {}
    for run in runs:
        key = (run.result.task, run.result.id, run.result.lr)
        groups.setdefault(key, []).append(run)
    several = len({name for _, name, _ in groups}) > 1
    shared = common(run.result.cell for run in runs) if several else {}
    found = []
    for (task, name, lr), group in sorted(groups.items(), key=lambda item: _natural(item[0])):
        group.sort(key=lambda run: run.result.seed)
        own = {key: x for key, x in group[0].result.cell.items() if key not in shared}
        found.append(
            Cell(
                id=name,
                task=task,
                label=cell_id(own),
                lr=lr,
                tuned=any(run.result.tuned for run in group),
                candidate=all(run.result.candidate for run in group),
                runs=tuple(group),
            )
        )
    return found


def shown(cells: Sequence[Cell]) -> list[Cell]:
    """The rows of the main table: what was tried while tuning is left to the table of rates."""
    return [cell for cell in cells if not cell.candidate]


def find(cells: Sequence[Cell], name: str) -> Cell:
    """The cell that `codec=topk,H=16` names, at its tuned rate, or `…@0.003` at that one.

    Raises:
        LabError: there is none, or several, and which there are.
    """
    meant, lr = reference(name), rate_of(name)
    shared = common(cell.overrides for cell in cells)
    found = [cell for cell in cells if meant.means(cell.overrides, shared)]
    if lr is not None:
        found = [cell for cell in found if cell.lr == lr]
    else:
        found = shown(found)
        found = [cell for cell in found if cell.tuned] or found
    if len(found) == 1:
        return found[0]
    if not found:
        names = [cell.name for cell in (shown(cells) if lr is None else cells)]
        there = ", ".join(dict.fromkeys(names)) or "none"
        raise LabError(f"no finished run of the cell {name}; there are {there}")
    several = ", ".join(f"{cell.label}{AT}{cell.lr:g} ({cell.task})" for cell in found)
    raise LabError(
        f"{name} is several cells: {several}; say which rate, as in {meant.name}{AT}0.003"
    )


def axes(cells: Sequence[Cell]) -> list[str]:
    """The overrides in which the cells differ, in the order of their keys."""
    keys = sorted({key for cell in cells for key in cell.overrides})
    return [key for key in keys if key not in common(cell.overrides for cell in cells)]


def _natural(key: tuple[str, str, float]) -> tuple[str, list[tuple[float, str]], float]:
    """Orders H=4 before H=16."""
    task, name, lr = key
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return task, [(float(x), "") if i % 2 else (0.0, x) for i, x in enumerate(parts)], lr
