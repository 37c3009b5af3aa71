"""A run's folder: complete or unfinished, and what is wrong with it said in a sentence."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab_runs import finished, result, unfinished

from pww.errors import LabError
from pww.lab import log, predictions, records
from pww.lab.cells import cell_id
from pww.lab.predictions import Prediction

TOPK = {"codec": "topk", "diloco.inner_steps": 16}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "compress"


def changed(folder: Path, **values: Any) -> None:
    path = folder / "result.json"
    row = json.loads(path.read_text())
    row.update(values)
    path.write_text(json.dumps({k: v for k, v in row.items() if v is not ...}))


def test_what_is_written_is_what_is_read(study: Path) -> None:
    folder = finished(study, TOPK, 2.25, seed=2, lr=1e-2, tuned=True, method="sparseloco")
    assert folder.name == "codec=topk,H=16-lr0.01-s2"
    assert not list(folder.glob("*.part"))
    run = records.read_run(folder)
    assert run.result == result(TOPK, 2.25, seed=2, lr=1e-2, tuned=True, method="sparseloco")
    assert run.config["optim"]["lr"] == 1e-2
    assert run.evals == [(0, 3.25), (50, 2.45), (100, 2.25)]
    assert run.result.id == cell_id(TOPK)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 9.5])
def test_a_run_that_diverged_is_a_result_whose_loss_is_infinite(study: Path, loss: float) -> None:
    folder = finished(study, TOPK, loss, diverged=True, evals=[(0, 4.0), (50, math.nan)])
    json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)
    run = records.read_run(folder)
    assert run.result.diverged
    assert run.result.level == math.inf
    assert math.isnan(run.result.loss) == math.isnan(loss)
    assert math.isnan(run.evals[1][1])


def test_a_run_is_unfinished_until_its_result_is_there(study: Path) -> None:
    folder = unfinished(study, TOPK)
    assert not records.is_finished(folder)
    with pytest.raises(LabError, match=r"result.json: is damaged \(.*No such file"):
        records.read_run(folder)
    records.write_result(folder, result(TOPK, 2.0))
    assert records.is_finished(folder)


@pytest.mark.parametrize("kept", [0, 1, 40, 200])
def test_a_cut_result_says_which_and_what_to_do(study: Path, kept: int) -> None:
    folder = finished(study, TOPK, 2.0)
    path = folder / "result.json"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(LabError) as caught:
        records.read_run(folder)
    said = str(caught.value)
    assert f"{path}: is damaged (" in said
    assert said.endswith("; remove codec=topk,H=16-s0 and run it again")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"lr": ...}, "has no 'lr'; remove"),
        ({"bytes": {"payload": 1}}, "has no 'values'; remove"),
        ({"cell": "codec=topk"}, r"is damaged \(cell is 'codec=topk'\)"),
        ({"diverged": 0}, r"is damaged \(diverged is 0\)"),
        ({"seed": 1.5}, r"is damaged \(seed is 1.5\)"),
        ({"seed": True}, r"is damaged \(seed is True\)"),
        ({"loss": "low"}, r"is damaged \(loss is 'low'\)"),
        ({"loss": True}, r"is damaged \(loss is True\)"),
        ({"loss": "NaN"}, r"is damaged \(the loss is nan and yet diverged is false\)"),
        ({"loss": math.inf}, r"is damaged \(the loss is inf and yet diverged is false\)"),
        ({"tuned": True, "candidate": True}, r"is damaged \(it is tuned and a candidate at once"),
    ],
)
def test_a_result_that_is_not_one_is_refused(study: Path, values: dict, said: str) -> None:
    folder = finished(study, TOPK, 2.0)
    changed(folder, **values)
    with pytest.raises(LabError, match=said):
        records.read_run(folder)


def test_a_result_that_is_no_object_is_refused(study: Path) -> None:
    folder = finished(study, TOPK, 2.0)
    (folder / "result.json").write_text("[1]")
    with pytest.raises(LabError, match=r"is damaged \(no object\)"):
        records.read_run(folder)


def test_a_result_without_its_configuration_is_nobodys(study: Path) -> None:
    folder = finished(study, TOPK, 2.0)
    (folder / "config.yaml").unlink()
    with pytest.raises(LabError, match=r"has a result but no config.yaml, so nobody can say what"):
        records.read_run(folder)
    for text, said in (("a: [", "cannot be read"), ("3", "holds no configuration")):
        (folder / "config.yaml").write_text(text)
        with pytest.raises(LabError, match=said):
            records.read_run(folder)
    (folder / "config.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(LabError, match="cannot be read"):
        records.read_run(folder)


@pytest.mark.parametrize("lr", [None, 3e-3, 1e-5, 1.0, 12.5])
@pytest.mark.parametrize("cell", [{}, TOPK, {"lab.x": "a-s3"}, {"lab.x": "[1,2]"}])
def test_the_cell_can_be_read_off_the_name(cell: dict, lr: float | None) -> None:
    assert records.cell_of(records.run_name(cell, seed=12, lr=lr)) == cell_id(cell)


def claim(**more: Any) -> Prediction:
    values: dict[str, Any] = {
        "claim": "c", "cell": cell_id(TOPK), "against": "none", "quantity": "loss", "low": 1.0,
        "high": 2.0, "at": "2026-01-01T00:00:00",
    }  # fmt: skip
    return Prediction(**(values | more))


def test_a_result_seals_what_was_predicted_and_keeps_it_when_it_is_rewritten(study: Path) -> None:
    before, after = claim(), claim(claim="later", cell="codec=int4")
    log.predict(study, before)
    folder = finished(study, TOPK, 2.0)
    assert records.read_run(folder).sealed == {before.id}
    predictions.append(study, after)
    records.rewrite_result(folder, tuned=True, candidate=False)
    run = records.read_run(folder)
    assert run.sealed == {before.id}
    assert run.result == result(TOPK, 2.0, tuned=True)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == run.config


def test_only_a_finished_run_can_be_said_to_be_tuned(study: Path) -> None:
    folder = unfinished(study, TOPK)
    with pytest.raises(LabError, match="is damaged"):
        records.rewrite_result(folder, tuned=True, candidate=False)
    assert not records.is_finished(folder)
