"""The folder of one run: complete with its `result.json`, or unfinished and started anew.

    outputs/lab/<study>/<cell>[-lr<lr>]-s<seed>/
        config.yaml     resolved; written by whoever starts the run
        metrics.jsonl   rows with split, step, round, tokens, loss (`pww.log.JsonLines`)
        result.json     written last, durably, with the predictions that were in the log by then

Reading says what is wrong with a folder in one sentence and changes nothing.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pww.config.paths import CONFIG_FILE
from pww.errors import LabError
from pww.folder import write_durably
from pww.lab import predictions
from pww.lab.cells import Value, cell_id
from pww.log import NOT_FINITE, read_json_lines

RESULT_FILE = "result.json"
METRICS_FILE = "metrics.jsonl"
TRAFFIC = ("payload", "values", "indices", "all_gather", "ring", "star_up", "star_down")
"""What is counted of a run's bytes."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run came to.

    `cell`: the overrides that make it, all but seed and learning rate. `tuned`: its rate is the
    best of several that were tried; `candidate`: it is one of those that were not. `bytes`: of one
    worker in the whole run; a key of `TRAFFIC` each.
    """

    task: str
    method: str
    cell: Mapping[str, Value]
    seed: int
    lr: float
    tuned: bool
    loss: float
    diverged: bool
    steps: int
    tokens: int
    seconds: float
    bytes: Mapping[str, int]
    code: str
    candidate: bool = False

    @property
    def id(self) -> str:
        """The name of its cell."""
        return cell_id(self.cell)

    @property
    def level(self) -> float:
        """The loss; infinity where it diverged, whatever was written down."""
        return math.inf if self.diverged else self.loss


@dataclass(frozen=True)
class Run:
    """A finished run as its folder has it."""

    folder: Path
    result: Result
    config: Mapping[str, Any]
    sealed: frozenset[str]  # ids of the predictions that were in the log when it ended

    @cached_property
    def evals(self) -> list[tuple[int, float]]:
        """Step and held-out loss, in order; nan and inf are kept."""
        rows = read_json_lines(self.folder / METRICS_FILE)
        return sorted(
            (int(str(row["step"])), float(str(row["loss"])))
            for row in rows
            if row.get("split") == "eval" and "step" in row and "loss" in row
        )


def run_name(cell: Mapping[str, Value], *, seed: int, lr: float | None = None) -> str:
    """The name of a run's folder; with `lr` where a cell is run at several rates."""
    rate = "" if lr is None else f"-lr{lr:g}"
    return f"{cell_id(cell)}{rate}-s{seed}"


def cell_of(name: str) -> str:
    """The cell in the name of a run's folder."""
    return re.sub(r"(-lr[0-9.e+-]+?)?-s\d+$", "", name)


def write_result(folder: Path, result: Result) -> None:
    """Finishes the run in `folder`; it seals what the study's log predicted until now.

    Raises:
        OSError: the disk refused; the run stays unfinished.
    """
    found, _ = predictions.written(folder.parent)
    _write(folder, result, frozenset(one.id for one in found))


def rewrite_result(folder: Path, *, tuned: bool, candidate: bool) -> None:
    """Says of a finished run whether its rate was the best of those tried; the seal stays.

    Raises:
        LabError: it is not finished, or damaged.
        OSError: the disk refused; its result is as it was.
    """
    run = read_run(folder)
    _write(folder, replace(run.result, tuned=tuned, candidate=candidate), run.sealed)


def is_finished(folder: Path) -> bool:
    """Whether the run has a result."""
    return (folder / RESULT_FILE).is_file()


def read_run(folder: Path) -> Run:
    """The finished run in `folder`.

    Raises:
        LabError: its result or its configuration is missing, damaged or contradicts itself.
    """
    path = folder / RESULT_FILE
    remedy = f"remove {folder.name} and run it again"
    try:
        row = json.loads(path.read_bytes())
        if not isinstance(row, dict):
            raise TypeError("no object")
        result = _result(row)
        sealed = frozenset(str(one) for one in row.get("sealed", []))
    except KeyError as key:
        raise LabError(f"{path}: has no {key}; {remedy}") from None
    except (OSError, ValueError, TypeError) as fault:
        raise LabError(f"{path}: is damaged ({fault}); {remedy}") from None
    try:
        config = yaml.safe_load((folder / CONFIG_FILE).read_text())
    except FileNotFoundError:
        raise LabError(
            f"{folder.name}: has a result but no {CONFIG_FILE}, so nobody can say what it is the "
            f"result of; {remedy}"
        ) from None
    except (OSError, UnicodeError, yaml.YAMLError) as fault:
        said = " ".join(str(fault).split())
        raise LabError(f"{folder / CONFIG_FILE}: cannot be read ({said}); {remedy}") from None
    if not isinstance(config, dict):
        raise LabError(f"{folder / CONFIG_FILE}: holds no configuration; {remedy}")
    return Run(folder, result, config, sealed)


def _write(folder: Path, result: Result, sealed: frozenset[str]) -> None:
    row = {name: getattr(result, name) for name in Result.__slots__}
    row["cell"], row["bytes"] = dict(result.cell), dict(result.bytes)
    for name in ("loss", "lr", "seconds"):
        if not math.isfinite(row[name]):  # JSON has no such numbers
            row[name] = json.dumps(row[name])
    row["sealed"] = sorted(sealed)
    text = json.dumps(row, indent=1, allow_nan=False)
    write_durably(folder / RESULT_FILE, f"{text}\n".encode())


def _result(row: dict[str, Any]) -> Result:
    """Checks what is read by kind.

    Raises:
        KeyError: a key is missing.
        TypeError, ValueError: a value is not what it should be.
    """
    for name, kind in (("cell", dict), ("bytes", dict), ("tuned", bool), ("diverged", bool)):
        if not isinstance(row[name], kind):
            raise TypeError(f"{name} is {row[name]!r}")
    result = Result(
        task=str(row["task"]),
        method=str(row["method"]),
        cell=row["cell"],
        seed=_whole(row, "seed"),
        lr=_number(row, "lr"),
        tuned=row["tuned"],
        loss=_number(row, "loss"),
        diverged=row["diverged"],
        steps=_whole(row, "steps"),
        tokens=_whole(row, "tokens"),
        seconds=_number(row, "seconds"),
        bytes={name: _whole(row["bytes"], name) for name in TRAFFIC},
        code=str(row["code"]),
        candidate=bool(row.get("candidate", False)),
    )
    if not math.isfinite(result.loss) and not result.diverged:
        raise ValueError(f"the loss is {result.loss} and yet diverged is false")
    if result.tuned and result.candidate:
        raise ValueError("it is tuned and a candidate at once")
    return result


def _number(row: dict[str, Any], name: str) -> float:
    value = row[name]
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}")
    return float(value)


def _whole(row: dict[str, Any], name: str) -> int:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}")
    return value
