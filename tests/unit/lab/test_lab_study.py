"""A study's runs: what cannot be used is said, what can be is used, and nothing is touched."""

import hashlib
from pathlib import Path

import pytest
from lab_runs import cell_runs, finished, unfinished

from pww.errors import LabError
from pww.lab.study import leaves, read_study

TOPK, INT4 = {"codec": "topk"}, {"codec": "int4"}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def losses(folder: Path) -> list[float]:
    return sorted(run.result.loss for run in read_study(folder).runs)


def test_every_sound_run_is_read(tmp_path: Path) -> None:
    study = tmp_path / "s"
    cell_runs(study, TOPK, [1.0, 2.0])
    cell_runs(study, INT4, [3.0])
    unfinished(study, {"codec": "int8"})
    (study / "report").mkdir()
    found = read_study(study)
    assert losses(study) == [1.0, 2.0, 3.0]
    assert found.unfinished == ("codec=int8-s0",)
    assert found.faults == ()
    assert found.name == "s"


def test_a_study_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"study=s: no such folder .*; there is none yet"):
        read_study(tmp_path / "s")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with pytest.raises(LabError, match="there are one, two"):
        read_study(tmp_path / "s")
    with pytest.raises(LabError, match="study=one: no run in"):
        read_study(tmp_path / "one")


def test_damaged_runs_are_named_and_the_others_used(tmp_path: Path) -> None:
    study = tmp_path / "s"
    cell_runs(study, TOPK, [1.0, 2.0, 3.0])
    (study / "codec=topk-s0" / "result.json").write_text('{"task": "cha')
    (study / "codec=topk-s1" / "config.yaml").unlink()
    before = contents(study)
    found = read_study(study)
    assert losses(study) == [3.0]
    assert len(found.faults) == 2
    assert "codec=topk-s0/result.json: is damaged" in found.faults[0]
    assert "codec=topk-s1: has a result but no config.yaml" in found.faults[1]
    assert contents(study) == before


def test_runs_of_another_study_are_found_out(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    cell_runs(mine, TOPK, [1.0])
    stray = finished(other, TOPK, 9.0, seed=1)
    stray.rename(mine / stray.name)
    found = read_study(mine)
    assert losses(mine) == [1.0]
    assert found.faults == (
        "codec=topk-s1: is a run of study other, not of mine; move it back there",
    )
    assert (mine / stray.name / "result.json").exists()


def test_of_two_results_of_one_run_neither_is_used(tmp_path: Path) -> None:
    study = tmp_path / "s"
    cell_runs(study, TOPK, [1.0, 2.0])
    finished(study, TOPK, 1.25, seed=0, name="copy")
    found = read_study(study)
    assert losses(study) == [2.0]
    (fault,) = found.faults
    assert "codec=topk-s0" in fault
    assert "copy" in fault
    assert "the same cell, seed and learning rate, and the losses" in fault
    assert "remove the one that should not be there" in fault


def test_one_computation_that_was_done_twice_counts_once(tmp_path: Path) -> None:
    study = tmp_path / "s"
    finished(study, TOPK, 1.0)
    finished(study, TOPK, 1.0, name="tuned", tuned=True)
    found = read_study(study)
    assert [run.folder.name for run in found.runs] == ["tuned"]
    assert found.faults == ()


def test_other_seeds_and_rates_are_the_same_cell(tmp_path: Path) -> None:
    study = tmp_path / "s"
    finished(study, TOPK, 1.0, seed=0, lr=1e-3, name="a")
    finished(study, TOPK, 2.0, seed=1, lr=1e-2, name="b", config={"lab": {"study": "s", "seeds": 9,
             "steps": 100, "tune": {"lr": [1.0]}}})  # fmt: skip
    assert read_study(study).faults == ()


def test_runs_of_a_cell_that_differ_in_more_than_the_seed_are_not_mixed(tmp_path: Path) -> None:
    study = tmp_path / "s"
    cell_runs(study, TOPK, [1.0])
    finished(study, TOPK, 2.0, seed=1, config={"optim": {"lr": 3e-3, "beta1": 0.5}})
    cell_runs(study, INT4, [7.0])
    found = read_study(study)
    assert losses(study) == [7.0]
    assert found.faults == (
        "codec=topk-s0, codec=topk-s1: runs of the cell codec=topk differ in optim.beta1, so they "
        "are not one cell; none of them is used: remove those that should not be there, or give "
        "them their own lab.study",
    )


def test_leaves_are_dotted() -> None:
    assert leaves({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}) == {"a.b": 1, "a.c.d": 2, "e": [3]}
