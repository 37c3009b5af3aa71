"""The runs of one cell: every seed, and every learning rate that is to be tried.

The best rate is the one with the least mean loss over the seeds; where one seed diverged the mean
is infinite. Its runs are recorded as tuned, the others as candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pww.clock import Clock
from pww.config.schema.lab import LabConfig
from pww.lab import one
from pww.lab.cells import Value
from pww.lab.records import read_run, rewrite_result, run_name


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to be made."""

    name: str  # of its folder
    seed: int
    lr: float


def plan(config: LabConfig, cell: Mapping[str, Value], *, rated: bool) -> list[Planned]:
    """Every run of a cell, in the order in which they are made; `rated`: a rate was typed."""
    rates = config.lab.tune.lr or (config.optim.lr,)
    named = rated or bool(config.lab.tune.lr)
    return [
        Planned(run_name(cell, seed=seed, lr=lr if named else None), seed, lr)
        for lr in rates
        for seed in range(config.seed, config.seed + config.lab.seeds)
    ]


def carry_out(
    config: LabConfig,
    cell: Mapping[str, Value],
    runs: Sequence[Planned],
    *,
    folder: Path,
    code: str,
    clock: Clock,
) -> str:
    """Makes those that are not there, and marks the best rate; what came out, in words.

    Raises:
        LabError: a folder holds another run, or cannot be read.
        OSError: the disk refused.
    """
    levels: dict[float, list[float]] = {}
    for number, planned in enumerate(runs, 1):
        here = folder / planned.name
        optim = config.optim.model_copy(update={"lr": planned.lr})
        own = config.model_copy(update={"optim": optim, "seed": planned.seed})
        title = f"{number}/{len(runs)}"
        one.make(own, cell, folder=here, title=title, code=code, clock=clock)
        levels.setdefault(planned.lr, []).append(read_run(here).result.level)
    means = {lr: fmean(found) for lr, found in levels.items()}
    best = min(means, key=lambda lr: (means[lr], lr))
    if config.lab.tune.lr:
        for planned in runs:
            rewrite_result(
                folder / planned.name, tuned=planned.lr == best, candidate=planned.lr != best
            )
    said = "diverged" if math.isinf(means[best]) else f"loss {means[best]:.4f}"
    tuned = f", best of {len(means)} rates" if config.lab.tune.lr else ""
    return f"{said} at lr {best:g}{tuned}, {config.lab.seeds} seed(s)"
