"""Claims come before their runs, and what is changed afterwards is found out."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from lab_runs import cell_runs, finished, unfinished

from pww.errors import LabError
from pww.lab import log
from pww.lab.log import note_outcome, predict, seal_faults
from pww.lab.predictions import Prediction, append, written
from pww.lab.report.cells import cells_of
from pww.lab.report.verdict import judged
from pww.lab.study import read_study
from pww.log import read_json_lines

TOPK, DENSE = {"codec": "topk"}, {"codec": "fp32"}


def claim(**more: Any) -> Prediction:
    values: dict[str, Any] = {
        "claim": "top-k costs little", "cell": "codec=topk", "against": "codec=fp32",
        "quantity": "loss_difference", "low": 0.0, "high": 0.1, "at": "2026-01-01T00:00:00",
    }  # fmt: skip
    return Prediction(**(values | more))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "s"


def rows(study: Path) -> list[dict[str, Any]]:
    return read_json_lines(study / "log.jsonl")


def rewrite(study: Path, change: Any) -> None:
    """Edits the log's rows as a person with an editor would."""
    changed = [change(row) for row in rows(study)]
    text = "".join(json.dumps(row) + "\n" for row in changed if row is not None)
    (study / "log.jsonl").write_text(text)


def faults(study: Path) -> tuple[dict[str, str], list[str]]:
    return seal_faults(study, read_study(study).runs)


def test_a_claim_is_written_once_and_read_back(study: Path) -> None:
    one = claim(low=-math.inf)
    predict(study, one)
    predict(study, claim(low=-math.inf, at="2027-01-01T00:00:00"))
    assert written(study) == ([one], [])
    assert rows(study)[0]["id"] == one.id


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"claim": " "}, "claim is empty: say in a sentence what you expect"),
        ({"low": 0.2}, "low=0.2 high=0.1: an interval has low <= high"),
        ({"low": math.nan}, "low=nan high=0.1: an interval has low <= high"),
        ({"low": -math.inf, "high": math.inf}, "low=-inf high=inf: nothing could refute that"),
        ({"quantity": "loss"}, "quantity=loss is of one cell: leave against=codec=fp32 out"),
        ({"quantity": "diverged"}, "quantity=diverged is of one cell"),
        ({"against": "none"}, "quantity=loss_difference compares two cells: give against=CELL"),
        ({"against": "codec=topk"}, "cell and against are both codec=topk: compare two cells"),
    ],
)
def test_a_claim_that_nobody_can_judge_is_refused(more: dict, said: str) -> None:
    with pytest.raises(LabError, match=said):
        claim(**more)


def test_what_diverges_can_be_predicted() -> None:
    assert claim(low=math.inf, high=math.inf).low == math.inf


@pytest.mark.parametrize("cell", ["codec=topk", "codec=topk,steps=100", "codec=topk@0.001"])
def test_a_claim_after_its_outcome_is_refused(study: Path, cell: str) -> None:
    finished(study, {**TOPK, "lab.steps": 100}, 2.0)
    finished(study, {**DENSE, "lab.steps": 100}, 2.0)
    with pytest.raises(LabError, match=r"its outcome is in .*a claim is written before its run"):
        predict(study, claim(cell=cell))
    assert not (study / "log.jsonl").exists()


def test_a_claim_about_a_run_that_has_begun_is_refused(study: Path) -> None:
    unfinished(study, TOPK, evals=[(0, 4.0)])
    with pytest.raises(LabError, match="codec=topk-s0 has begun, and shows how it goes"):
        predict(study, claim())


def test_a_claim_about_one_rate_of_a_cell_is_judged_at_that_rate(study: Path) -> None:
    one = claim(cell="codec=topk@0.001", against="codec=fp32@0.001", low=0.4, high=0.6)
    predict(study, one)
    cell_runs(study, DENSE, [2.0, 2.0], lr=1e-3, candidate=True)
    cell_runs(study, TOPK, [2.5, 2.5], lr=1e-3, candidate=True)
    cell_runs(study, DENSE, [1.0, 1.0], lr=1e-2, tuned=True)
    cell_runs(study, TOPK, [1.0, 1.0], lr=1e-2, tuned=True)
    (found,) = judged([one], cells_of(read_study(study).runs), faults(study)[0])
    assert found.verdict == "confirmed"


def test_what_a_claim_is_measured_against_may_be_known(study: Path) -> None:
    cell_runs(study, DENSE, [2.0, 2.1])
    unfinished(study, TOPK)  # made, and nothing to be seen yet
    predict(study, claim())
    assert len(rows(study)) == 1


def test_the_same_claim_is_no_fault_once_its_outcome_is_in(study: Path) -> None:
    predict(study, claim())
    finished(study, TOPK, 2.0)
    predict(study, claim())
    with pytest.raises(LabError, match="its outcome is in"):
        predict(study, claim(high=0.2))
    assert len(rows(study)) == 1


def test_an_honest_log_has_no_fault(study: Path) -> None:
    predict(study, claim())
    finished(study, TOPK, 2.0)
    finished(study, DENSE, 2.0)
    predict(study, claim(cell="codec=int4"))
    assert faults(study) == ({}, [])


def test_a_claim_that_is_edited_after_its_outcome_is_found_out(study: Path) -> None:
    predict(study, claim())
    finished(study, TOPK, 2.0)
    rewrite(study, lambda row: {**row, "high": 0.5})
    _, said = faults(study)
    old, new = claim().id, claim(high=0.5).id
    assert said == [
        f"log.jsonl: prediction {old} was edited: what it says now has the id {new}; put its row "
        "back as it was",
        f"log.jsonl: prediction {old}, which was there when codec=topk-s0 ended, was edited or "
        "removed after its outcome; put its row back as it was",
    ]
    with pytest.raises(LabError, match="was edited"):
        predict(study, claim(cell="codec=int4"))


def test_an_edit_with_an_id_of_its_own_is_found_out_too(study: Path) -> None:
    predict(study, claim())
    finished(study, TOPK, 2.0)
    new = claim(high=0.5)
    rewrite(study, lambda row: {**row, "high": 0.5, "id": new.id})
    void, said = faults(study)
    assert void == {new.id: "written after its outcome (codec=topk-s0) was in"}
    assert len(said) == 1
    assert "was edited or removed after its outcome" in said[0]


@pytest.mark.parametrize("torn", [False, True])
def test_a_claim_that_is_gone_after_its_outcome_is_missed(study: Path, torn: bool) -> None:
    predict(study, claim())
    finished(study, TOPK, 2.0)
    path = study / "log.jsonl"
    path.write_bytes(path.read_bytes()[:50] if torn else b"")
    _, said = faults(study)
    assert len(said) == 1
    assert f"prediction {claim().id}, which was there when codec=topk-s0 ended" in said[0]


def test_a_claim_that_slips_in_late_is_void(study: Path) -> None:
    finished(study, TOPK, 2.0)
    append(study, claim())
    assert faults(study)[0] == {claim().id: "written after its outcome (codec=topk-s0) was in"}


def test_a_row_that_is_no_claim_is_named(study: Path) -> None:
    predict(study, claim())
    predict(study, claim(cell="codec=int4"))
    path = study / "log.jsonl"
    lines = path.read_text().splitlines()
    for change, said in (
        ({"quantity": "speed"}, "quantity=speed is one of loss, loss_difference"),
        ({"low": "x"}, "could not convert string to float"),
    ):
        bad = json.dumps({**json.loads(lines[0]), **change})
        path.write_text(f"{bad}\n{lines[1]}\n")
        found, told = written(study)
        assert [one.cell for one in found] == ["codec=int4"]
        assert len(told) == 1
        assert said in told[0]
        assert f"prediction {claim().id} cannot be read" in told[0]
    row = json.loads(lines[0])
    del row["claim"]
    path.write_text(json.dumps(row) + "\n")
    assert "cannot be read (KeyError: 'claim')" in written(study)[1][0]


def test_an_outcome_is_added_when_it_is_new(study: Path) -> None:
    study.mkdir()
    row = {"prediction": "p", "verdict": "confirmed", "mean": math.nan, "low": -math.inf}
    note_outcome(study, row)
    note_outcome(study, row)
    note_outcome(study, {**row, "prediction": "q"})
    note_outcome(study, row)
    assert [one["prediction"] for one in rows(study)] == ["p", "q"]
    note_outcome(study, {**row, "verdict": "refuted"})
    assert [one["verdict"] for one in rows(study)] == ["confirmed", "confirmed", "refuted"]


def test_a_damaged_run_shows_its_outcome_all_the_same(study: Path) -> None:
    folder = finished(study, TOPK, 2.0)
    (folder / "result.json").write_text("{")
    with pytest.raises(LabError, match="has begun, and shows how it goes"):
        log.predict(study, claim())
