"""One run and its folder: configuration first, rows as they come, the result last and durably."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pww.clock import Clock
from pww.config.paths import CONFIG_FILE, shown
from pww.config.schema import HfModel
from pww.config.schema.lab import LabConfig, TextTask
from pww.data.progress import progress
from pww.errors import LabError
from pww.folder import owned, write_durably
from pww.lab.cells import Value
from pww.lab.records import METRICS_FILE, Result, is_finished, read_run, write_result
from pww.lab.study import FREE, had, leaves
from pww.log import JsonLines
from pww.transport.digest import new_digest


def make(
    config: LabConfig,
    cell: Mapping[str, Value],
    *,
    folder: Path,
    title: str,
    code: str,
    clock: Clock,
) -> None:
    """Makes the run unless it is there; `code` is what its result says that it was made by.

    Raises:
        LabError: the folder holds a finished run of another configuration.
        StateError: another process makes it.
        DataError: there is no such text.
        OSError: the disk refused.
    """
    with owned(folder, remedy="the run is being made there; wait for it, or end that process"):
        config = _resolved(config)
        tree = _recorded(config)
        if is_finished(folder):
            _check_same(tree, folder)
            return
        (folder / METRICS_FILE).unlink(missing_ok=True)
        # One seed, one rate: what this folder is alone
        tree["lab"] |= {"seeds": 1, "tune": {"lr": []}}
        header = "# The configuration of this run, complete; not to be edited.\n"
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
        write_durably(folder / CONFIG_FILE, (header + text).encode())
        result = _train(config, cell, folder=folder, title=title, code=code, clock=clock)
        write_result(folder, result)


def _resolved(config: LabConfig) -> LabConfig:
    """The text by its name, so that records say which it was."""
    task = config.task
    if not isinstance(task, TextTask):
        return config
    from pww.lab import text

    name = text.load(task).name
    return config.model_copy(update={"task": task.model_copy(update={"text": name})})


def _recorded(config: LabConfig) -> dict[str, Any]:
    """The configuration, with the digest of a file that it names and does not hold.

    Raises:
        LabError: the file cannot be read.
    """
    tree = config.model_dump(mode="json")
    if isinstance(config.model, HfModel) and Path(config.model.config).is_dir():
        path = Path(config.model.config, "config.json")
        try:
            tree["model"]["config_digest"] = new_digest(path.read_bytes()).hexdigest()
        except OSError as why:
            raise LabError(f"model.config={config.model.config}: cannot be read: {why}") from why
    return tree


def _check_same(tree: Mapping[str, Any], folder: Path) -> None:
    there, here = leaves(read_run(folder).config), leaves(tree)
    differing = sorted(
        key
        for key in there.keys() | here.keys()
        if had(there, key) != had(here, key)
        and (key in ("seed", "optim.lr") or not any(key.startswith(free) for free in FREE))
    )
    if differing:
        said = ", ".join(f"{key} ({there.get(key)}, now {here.get(key)})" for key in differing)
        raise LabError(
            f"{shown(folder)} holds a finished run that differs in {said}; give another "
            "lab.study, or remove it"
        )


def _train(
    config: LabConfig,
    cell: Mapping[str, Value],
    *,
    folder: Path,
    title: str,
    code: str,
    clock: Clock,
) -> Result:
    """The run itself."""
    rows = JsonLines(folder / METRICS_FILE)
    began = clock.monotonic()
    task = config.task
    words = f"{title} {folder.name}"
    try:
        if isinstance(task, TextTask):
            import torch

            from pww.lab.engine import run
            from pww.lab.network import context_of

            torch.set_num_threads(config.lab.threads)
            each = config.workers * config.optim.batch_windows * context_of(config)
            with progress(
                words, total=config.lab.steps * each, clock=clock, unit="tokens"
            ) as advance:
                made = run(
                    config, task, write=lambda row: rows.write(row),
                    progress=lambda step, loss: advance(each),
                )  # fmt: skip
        else:
            from pww.lab.quadratic_task import run as run_quadratic

            made = run_quadratic(config, task, write=lambda row: rows.write(row))
    finally:
        rows.close()
    return Result(
        task=task.kind, method=config.method.name, cell=cell, seed=config.seed,
        lr=config.optim.lr, tuned=False, loss=made.loss, diverged=made.diverged,
        steps=made.steps, tokens=made.tokens, seconds=clock.monotonic() - began,
        bytes=made.bytes, code=code,
    )  # fmt: skip
