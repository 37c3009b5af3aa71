"""Run folders of the lab as the engine leaves them, written through the lab's own records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pww.lab.cells import Value
from pww.lab.records import TRAFFIC, Result, run_name, write_result
from pww.log import JsonLines

LR = 3e-3


def unfinished(
    study: Path,
    cell: Mapping[str, Value],
    *,
    seed: int = 0,
    lr: float = LR,
    name: str = "",
    config: Mapping[str, Any] | None = None,
    evals: Sequence[tuple[int, float]] = (),
) -> Path:
    """A folder with configuration and rows, and no result."""
    folder = study / (name or run_name(cell, seed=seed, lr=None if lr == LR else lr))
    folder.mkdir(parents=True)
    values: dict[str, Any] = {
        "seed": seed,
        "optim": {"lr": lr, "beta1": 0.9},
        "lab": {"study": study.name, "seeds": 3, "steps": 100},
        **dict(config or {}),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    lines = JsonLines(folder / "metrics.jsonl")
    for step, loss in evals:
        lines.write({"split": "eval", "step": step, "round": step, "loss": loss, "tokens": step})
    lines.close()
    return folder


def result(cell: Mapping[str, Value], loss: float, **more: Any) -> Result:
    """What a finished run came to."""
    values: dict[str, Any] = {
        "task": "charlm", "method": "diloco", "seed": 0, "lr": LR, "tuned": False,
        "diverged": False, "steps": 100, "tokens": 4800, "seconds": 1.5,
        "bytes": dict.fromkeys(TRAFFIC, 1000), "code": "abc",
    }  # fmt: skip
    return Result(cell=cell, loss=loss, **(values | more))


def finished(
    study: Path,
    cell: Mapping[str, Value],
    loss: float,
    *,
    seed: int = 0,
    lr: float = LR,
    name: str = "",
    config: Mapping[str, Any] | None = None,
    evals: Sequence[tuple[int, float]] | None = None,
    **more: Any,
) -> Path:
    """A folder with its result."""
    curve = [(0, loss + 1.0), (50, loss + 0.2), (100, loss)] if evals is None else evals
    folder = unfinished(study, cell, seed=seed, lr=lr, name=name, config=config, evals=curve)
    write_result(folder, result(cell, loss, seed=seed, lr=lr, **more))
    return folder


def cell_runs(
    study: Path, cell: Mapping[str, Value], losses: Sequence[float], *, first: int = 0, **more: Any
) -> list[Path]:
    """A run for each loss, with the seeds `first`, `first + 1`, …"""
    return [finished(study, cell, loss, seed=first + i, **more) for i, loss in enumerate(losses)]
