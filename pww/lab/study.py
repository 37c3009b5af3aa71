"""All runs of one study: those that can be used, and a sentence for each that cannot.

Nothing is dropped in silence and nothing is removed: what is damaged, doubled, or belongs to
another study is a fault; a run without a result is unfinished.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pww.config.paths import CONFIG_FILE
from pww.errors import LabError
from pww.lab.records import METRICS_FILE, RESULT_FILE, Run, is_finished, read_run

FREE = (
    "seed", "optim.lr", "dry", "lab.study", "lab.root", "lab.seeds", "lab.tune", "lab.threads",
    "lab.log_every", "lab.eval_every", "site", "launcher",
)  # fmt: skip
"""Keys in which two runs of a cell may differ; all others are the same, or they are two cells."""

JOBS, DONE = "jobs", "finished"
"""Below a study's folder: those of cells that were queued; of each, what came out once it ended."""
LATER: Mapping[str, object] = {"method.overlap_steps": 0}
"""Keys that came to methods later, and the value without which earlier runs were made."""


@dataclass(frozen=True, slots=True)
class Study:
    """What the folder of a study holds."""

    folder: Path
    runs: tuple[Run, ...]
    unfinished: tuple[str, ...]  # names of their folders
    faults: tuple[str, ...]
    jobs: tuple[str, ...] = ()  # folders of those that have not ended well

    @property
    def name(self) -> str:
        """As in `lab.study`."""
        return self.folder.name


def read_study(folder: Path) -> Study:
    """Reads every run below the folder.

    Raises:
        LabError: there is no such study, or no run of it ever began.
    """
    if not folder.is_dir():
        others = sorted(
            p.name for p in folder.parent.glob("*") if p.is_dir() and p.name != "report"
        )
        there = f"there are {', '.join(others)}" if others else "there is none yet"
        raise LabError(f"study={folder.name}: no such folder {folder}; {there}")
    runs: list[Run] = []
    unfinished: list[str] = []
    faults: list[str] = []
    for one in sorted(p for p in folder.iterdir() if p.is_dir() and _is_run(p)):
        if not is_finished(one):
            unfinished.append(one.name)
            continue
        try:
            run = read_run(one)
        except LabError as fault:
            faults.append(str(fault))
            continue
        study = _study_of(run.config)
        if study not in ("", folder.name):
            faults.append(
                f"{one.name}: is a run of study {study}, not of {folder.name}; move it back there"
            )
            continue
        runs.append(run)
    if not runs and not unfinished and not faults:
        raise LabError(f"study={folder.name}: no run in {folder} yet")
    runs, doubled = _without_doubles(runs)
    runs, mixed = _of_one_configuration(runs)
    every = (*faults, *doubled, *mixed)
    return Study(folder, tuple(runs), tuple(unfinished), every, tuple(_left(folder)))


def _left(folder: Path) -> list[str]:
    jobs = sorted(p.parent for p in (folder / JOBS).glob("*/slurm"))
    return [f"{JOBS}/{one.name}" for one in jobs if not (one / DONE).exists()]


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (RESULT_FILE, CONFIG_FILE, METRICS_FILE))


def _study_of(config: Mapping[str, Any]) -> str:
    lab = config.get("lab")
    return str(lab.get("study", "")) if isinstance(lab, Mapping) else ""


def _without_doubles(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Of two runs of one cell, seed and rate neither is used, unless they came to the same."""
    by_key: dict[tuple[str, str, int, float], list[Run]] = {}
    for run in runs:
        result = run.result
        by_key.setdefault((result.task, result.id, result.seed, result.lr), []).append(run)
    kept: list[Run] = []
    faults: list[str] = []
    for same in by_key.values():
        # A tuned run, and the one that was done before anybody tuned, may be one computation
        same.sort(key=lambda run: not run.result.tuned)
        if len({run.result.level for run in same}) == 1:
            kept.append(same[0])
            continue
        names = " and ".join(run.folder.name for run in same)
        losses = ", ".join(f"{run.result.level:g}" for run in same)
        faults.append(
            f"{names}: the same cell, seed and learning rate, and the losses {losses}; neither is "
            "used: remove the one that should not be there"
        )
    return kept, faults


def _of_one_configuration(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Runs of a cell are used together only if they differ in seed and rate alone."""
    by_cell: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        by_cell.setdefault((run.result.task, run.result.id), []).append(run)
    kept: list[Run] = []
    faults: list[str] = []
    for (_, cell), same in by_cell.items():
        first = leaves(same[0].config)
        differing: set[str] = set()
        for run in same[1:]:
            other = leaves(run.config)
            differing |= {
                key
                for key in first.keys() | other.keys()
                if had(first, key) != had(other, key) and not _below(key, FREE)
            }
        if not differing:
            kept += same
            continue
        faults.append(
            f"{', '.join(run.folder.name for run in same)}: runs of the cell {cell} differ in "
            f"{', '.join(sorted(differing))}, so they are not one cell; none of them is used: "
            "remove those that should not be there, or give them their own lab.study"
        )
    return kept, faults


def leaves(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Every value below, by its dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= leaves(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def had(found: Mapping[str, Any], key: str) -> object:
    """A key's value in the `leaves` of a run, whose version may not have known the key yet."""
    return found.get(key, LATER.get(key))


def _below(name: str, keys: Sequence[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") for key in keys)
