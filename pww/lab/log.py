"""A study's log: claims are written before their runs, and judged from the numbers afterwards.

    outputs/lab/<study>/log.jsonl
        {"kind": "prediction", "id", "claim", "cell", "against", "quantity", "low", "high", "at"}
        {"kind": "outcome", "prediction", "verdict", "mean", "low", "high", "seeds", ...}

Rows are only ever added. A prediction is refused once a run of its cell has shown anything, and a
run that ends seals what the log held (`records.write_result`), so that later changes are found.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pww.errors import LabError
from pww.lab.cells import common, reference
from pww.lab.predictions import LOG_FILE, Prediction, append, written
from pww.lab.records import METRICS_FILE, Run, cell_of, is_finished, read_run
from pww.log import JsonLines, read_json_lines


def predict(study: Path, prediction: Prediction) -> None:
    """Writes the claim down, durably; the same claim twice is written once.

    Only its own cell must not have run, at whatever rate: what it is measured against may be known.

    Raises:
        LabError: an outcome is in, or a run of the cell has begun to show one.
    """
    known, faults = written(study)
    if faults:
        raise LabError("\n".join(faults))
    if any(_same(prediction, one) for one in known):
        return
    study.mkdir(parents=True, exist_ok=True)
    meant = reference(prediction.cell)
    folders = sorted(p for p in study.iterdir() if p.is_dir())
    finished = [run for run in map(_finished, folders) if run is not None]
    shared = common(run.result.cell for run in finished)
    for run in finished:
        if meant.means(run.result.cell, shared):
            raise LabError(
                f"cell={prediction.cell}: its outcome is in ({run.folder.name}), and a claim is "
                "written before its run; make it in another study, with seeds of its own"
            )
    for folder in folders:
        metrics = folder / METRICS_FILE
        begun = metrics.exists() and metrics.stat().st_size > 0
        if begun and cell_of(folder.name) == meant.name:
            raise LabError(
                f"cell={prediction.cell}: {folder.name} has begun, and shows how it goes; remove "
                "that run, or make the claim in another study"
            )
    append(study, prediction)


def seal_faults(study: Path, runs: Sequence[Run]) -> tuple[dict[str, str], list[str]]:
    """What was changed after outcomes were in: by prediction id why it is void, and the rest."""
    known, faults = written(study)
    ids = {one.id for one in known}
    for run in runs:
        for lost in sorted(run.sealed - ids):
            faults.append(
                f"{LOG_FILE}: prediction {lost}, which was there when {run.folder.name} ended, was "
                "edited or removed after its outcome; put its row back as it was"
            )
    shared = common(run.result.cell for run in runs)
    void: dict[str, str] = {}
    for one in known:
        meant = reference(one.cell)
        late = [
            run for run in runs if meant.means(run.result.cell, shared) and one.id not in run.sealed
        ]
        if late:
            void[one.id] = f"written after its outcome ({late[0].folder.name}) was in"
    return void, list(dict.fromkeys(faults))


def note_outcome(study: Path, row: dict[str, object]) -> None:
    """Adds an outcome, unless the last one of its prediction says the same."""
    row = {"kind": "outcome", **row}
    path = study / LOG_FILE
    before = [
        one
        for one in read_json_lines(path)
        if one.get("kind") == "outcome" and one.get("prediction") == row["prediction"]
    ]
    if before and json.dumps(before[-1], sort_keys=True) == json.dumps(row, sort_keys=True):
        return
    log = JsonLines(path)
    try:
        log.write(row, durable=True)
    finally:
        log.close()


def _finished(folder: Path) -> Run | None:
    """The run in `folder`; None while it is unfinished, or where it cannot be read."""
    try:
        return read_run(folder) if is_finished(folder) else None
    except LabError:
        return None


def _same(one: Prediction, other: Prediction) -> bool:
    """All but the time of writing."""
    return (one.claim, one.cell, one.against, one.quantity, one.low, one.high) == (
        other.claim, other.cell, other.against, other.quantity, other.low, other.high
    )  # fmt: skip
