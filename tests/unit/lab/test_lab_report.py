"""A report is made of recorded runs alone: its numbers, what it warns of, and what it survives."""

import csv
import io
import itertools
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import yaml
from lab_runs import cell_runs, finished, unfinished

from pww.errors import LabError
from pww.lab.log import note_outcome, predict
from pww.lab.predictions import Prediction
from pww.lab.records import TRAFFIC
from pww.lab.report import style
from pww.lab.report.build import Report, build
from pww.lab.report.write import outcome, write_report
from pww.log import read_json_lines

DENSE, TOPK = {"codec": "fp32"}, {"codec": "topk"}
LOSSES = {"fp32": [2.0, 2.1, 2.3], "topk": [2.05, 2.25, 2.4]}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tmp_path / "compress"


def report(study: Path, against: str = "codec=fp32") -> Report:
    return build(study, against=against, recipe=None)


def two_cells(study: Path, **more: Any) -> None:
    for codec, losses in LOSSES.items():
        cell_runs(study, {"codec": codec, "workers": 4}, losses, **more)


def rows_of(done: Report, name: str = "table.csv") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(done.tables[name].csv())))


def section(text: str, title: str) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_tables_numbers_are_those_of_the_runs(study: Path) -> None:
    two_cells(study)
    done = report(study)
    fp32, topk = (np.array(x) for x in LOSSES.values())
    by_cell = {row["cell"]: row for row in rows_of(done)}
    row = by_cell["codec=topk"]
    assert row["codec"] == "topk"
    assert float(row["loss_mean"]) == pytest.approx(topk.mean())
    assert float(row["loss_sd"]) == pytest.approx(topk.std(ddof=1))
    apart = topk - fp32
    low, high = scipy.stats.t.interval(0.95, 2, apart.mean(), scipy.stats.sem(apart))
    assert float(row["difference_mean"]) == pytest.approx(apart.mean())
    assert float(row["difference_low"]) == pytest.approx(low)
    assert float(row["difference_high"]) == pytest.approx(high)
    assert row["against"] == "codec=fp32"
    assert {row[f"bytes_{name}"] for name in TRAFFIC} == {"1000.0"}
    table = section(done.text, "Losses")
    assert f"| {topk.mean():.4f} ± {topk.std(ddof=1):.4f} |" in table
    assert f"{apart.mean():.4f} ({low:.4f} to {high:.4f})" in table
    assert "All cells: workers=4." in done.text
    runs = rows_of(done, "runs.csv")
    assert len(runs) == 6
    assert {float(row["loss"]) for row in runs} == {*fp32.tolist(), *topk.tolist()}
    assert done.faults == ()


def test_the_same_runs_give_the_same_bytes_and_old_files_go(study: Path) -> None:
    two_cells(study)
    write_report(study, against="codec=fp32", recipe=None)
    first = {path.name: path.read_bytes() for path in (study / "report").iterdir()}
    (study / "report" / "axis-H.svg").write_text("of an earlier report")
    (study / "report" / "mine.txt").write_text("mine")
    write_report(study, against="codec=fp32", recipe=None)
    again = {path.name: path.read_bytes() for path in (study / "report").iterdir()}
    assert again.pop("mine.txt") == b"mine"
    assert again == first
    assert set(first) == {
        "table.md", "table.csv", "runs.csv", "loss.svg", "loss.png", "curves.svg", "curves.png"
    }  # fmt: skip


def test_a_report_needs_nothing_but_the_runs(study: Path, tmp_path: Path) -> None:
    two_cells(study)
    first = report(study).text
    moved = tmp_path / "elsewhere" / "compress"
    shutil.copytree(study, moved, ignore=shutil.ignore_patterns("report"))
    assert report(moved).text == first


def test_untuned_cells_are_said_to_be_untuned(study: Path) -> None:
    two_cells(study)
    said = section(report(study).text, "Read this first")
    assert "No cell has a tuned learning rate: what is better here may be worse when each" in said
    assert "0.003 untuned" in section(report(study).text, "Losses")


def tuned(study: Path, cell: dict, by_rate: dict[float, float], best: float) -> None:
    for lr, loss in by_rate.items():
        kind = {"tuned": True} if lr == best else {"candidate": True}
        cell_runs(study, cell, [loss, loss + 0.1], lr=lr, **kind)


def test_tuned_cells_stand_alone_and_what_was_tried_is_beside(study: Path) -> None:
    tuned(study, DENSE, {1e-3: 3.0, 3e-3: 2.0, 1e-2: 2.5}, 3e-3)
    tuned(study, TOPK, {1e-3: 3.1, 3e-3: 2.2, 1e-2: 2.6}, 3e-3)
    done = report(study)
    assert "## Read this first" not in done.text
    losses = section(done.text, "Losses")
    assert losses.count("0.003") == 2
    assert "0.01" not in losses.replace("0.0100", "")
    assert "untuned" not in losses
    rates = section(done.text, "Learning rates")
    assert len(re.findall(r"codec=\w+", rates)) == 6
    assert rates.count("best |") >= 2
    assert "rates" in done.drawings


def test_a_mix_of_tuned_and_untuned_is_said(study: Path) -> None:
    tuned(study, DENSE, {1e-3: 3.0, 3e-3: 2.0, 1e-2: 2.5}, 3e-3)
    cell_runs(study, TOPK, [2.0, 2.1])
    assert "Tuned and untuned cells stand side by side; untuned: codec=topk." in report(study).text


@pytest.mark.parametrize(
    ("by_rate", "best", "said"),
    [
        ({1e-3: 2.0, 3e-3: 2.5}, 1e-3, "its best rate, 0.001, is at the end of those that were"),
        ({1e-3: 2.0, 3e-3: 2.5, 1e-2: 3.0}, 3e-3, "the rate 0.003 counts as its best, but 0.001"),
        ({3e-3: 2.0}, 3e-3, "is said to be tuned, but only one rate was recorded"),
    ],
)
def test_a_tuning_that_is_not_one_is_said(
    study: Path, by_rate: dict, best: float, said: str
) -> None:
    tuned(study, DENSE, by_rate, best)
    assert f"codec=fp32: {said}" in report(study, "").text


def test_a_tuning_that_was_cut_off_has_no_row(study: Path) -> None:
    two_cells(study)
    cell_runs(study, {"codec": "int4", "workers": 4}, [2.0], candidate=True)
    done = report(study)
    assert "Tuning is unfinished, so these have no row: codec=int4" in done.text
    assert "int4" not in section(done.text, "Losses")


def test_what_else_a_reader_must_know(study: Path) -> None:
    two_cells(study)
    cell_runs(study, {"codec": "int4", "workers": 4}, [2.0], tokens=9600, code="def")
    finished(
        study,
        {"codec": "sign", "workers": 4},
        math.nan,
        diverged=True,
        tokens=100,
        task="quadratic",
    )
    unfinished(study, {"codec": "bf16", "workers": 4})
    said = section(report(study).text, "Read this first")
    for sentence in (
        "codec=sign: 1 of 1 seeds diverged.",
        "One seed has no interval: codec=int4, codec=sign; give lab.seeds=3 or more.",
        "Not all cells have the same seeds",
        "Losses of different tasks do not compare: charlm, quadratic.",
        "Budgets differ: from 4,800 to 9,600 tokens a run.",
        "Runs of 2 versions of the code stand side by side: abc, def.",
        "Unfinished, and in no row: codec=bf16,workers=4-s0.",
    ):
        assert sentence in said


def test_another_text_than_the_sources_is_said(study: Path) -> None:
    two_cells(study)
    text = "The text is the documentation of Python: the figures of the sources are of another"
    assert text not in report(study).text
    for folder in study.iterdir():
        if (folder / "config.yaml").exists():
            config = yaml.safe_load((folder / "config.yaml").read_text())
            config["task"] = {**config.get("task", {}), "text": "pydocs"}
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert text in section(report(study).text, "Read this first")


def test_a_cell_that_diverged_is_in_the_table_and_last(study: Path) -> None:
    two_cells(study)
    cell_runs(
        study, {"codec": "sign", "workers": 4}, [math.nan] * 3, diverged=True,
        evals=[(0, 4.0), (50, math.nan)],
    )  # fmt: skip
    lines = section(report(study).text, "Losses").splitlines()
    rows = [line for line in lines if line.startswith("| codec=")]
    assert re.match(
        r"\| codec=sign +\| diloco +\| 0.003 untuned \| diverged +\| diverged", rows[-1]
    )
    assert rows[-1].split("|")[8].strip() == "3"


def test_damage_is_named_on_top_and_the_rest_reported(study: Path) -> None:
    two_cells(study)
    (study / "codec=topk,workers=4-s1" / "result.json").write_bytes(b'{"task"')
    done = report(study)
    assert len(done.faults) == 1
    assert done.text.index("## Left out, or changed") < done.text.index("## Losses")
    assert "codec=topk,workers=4-s1/result.json: is damaged" in done.text
    assert {row["cell"]: row["seeds"] for row in rows_of(done)} == {
        "codec=fp32": "3", "codec=topk": "2"
    }  # fmt: skip


def claim(**more: Any) -> Prediction:
    values: dict[str, Any] = {
        "claim": "top-k costs less than a fifth", "cell": "codec=topk", "against": "codec=fp32",
        "quantity": "loss_difference", "low": -0.5, "high": 0.5, "at": "2026-01-01T00:00:00",
    }  # fmt: skip
    return Prediction(**(values | more))


def test_predictions_are_judged_and_the_log_keeps_the_outcome(study: Path) -> None:
    predict(study, claim())
    predict(study, claim(claim="it costs a lot", low=1.0, high=2.0))
    predict(study, claim(claim="just so", low=0.05, high=0.5))
    predict(study, claim(claim="int4 is free", cell="codec=int4"))
    predict(study, claim(claim="another task", cell="task=quadratic"))
    two_cells(study)
    cell_runs(study, {"task": "quadratic", "workers": 4}, [1.0], task="quadratic")
    done = report(study)
    table = section(done.text, "Predictions")
    assert re.search(r"top-k costs .*\| confirmed +\|", table)
    assert re.search(r"it costs a lot .*\| refuted +\|", table)
    assert re.search(r"just so .*\| inconclusive \(the intervals overlap\) +\|", table)
    assert re.search(r"int4 is free .*\| open \(no finished run of the cell codec=int4;", table)
    assert re.search(r"another task .*\| inconclusive \(.* their losses do not compare\)", table)
    for one in (*done.judged, *done.judged):
        if one.verdict != "open":
            note_outcome(study, outcome(one))
    outcomes = [r for r in read_json_lines(study / "log.jsonl") if r["kind"] == "outcome"]
    assert [row["verdict"] for row in outcomes] == [
        "confirmed", "refuted", "inconclusive", "inconclusive"
    ]  # fmt: skip
    assert outcomes[0]["seeds"] == [0, 1, 2]
    assert outcomes[0]["mean"] == pytest.approx(0.1)


def test_a_claim_that_was_edited_afterwards_is_never_confirmed(study: Path) -> None:
    predict(study, claim(claim="it costs a lot", low=1.0, high=2.0))
    two_cells(study)
    path = study / "log.jsonl"
    path.write_text(path.read_text().replace('"low": 1.0', '"low": 0.0'))
    done = report(study)
    assert any("was edited: what it says now has the id" in fault for fault in done.faults)
    assert "confirmed" not in done.text
    forged = claim(claim="it costs a lot", low=0.0, high=2.0)
    path.write_text(re.sub(r'"id": "\w+"', f'"id": "{forged.id}"', path.read_text()))
    done = report(study)
    assert any("was edited or removed after its outcome" in fault for fault in done.faults)
    assert "void (written after its outcome" in section(done.text, "Predictions")
    assert "confirmed" not in done.text


def test_what_the_losses_are_compared_with(study: Path) -> None:
    two_cells(study)
    assert "loss - codec=topk" in report(study, "codec=topk").text
    assert "loss - " not in report(study, "").text
    with pytest.raises(LabError, match="no finished run of the cell codec=int4; there are"):
        report(study, "codec=int4")
    cell_runs(study, {"workers": 4}, [2.0, 2.0])
    assert "loss - base" in report(study, "").text


def test_a_study_of_one_cell_is_called_by_its_name(study: Path) -> None:
    cell_runs(study, TOPK, [1.0, 2.0])
    assert "| codec=topk |" in report(study, "").text


def test_axes_with_numbers_are_drawn(study: Path) -> None:
    for h, codec in itertools.product((1, 4, 16), ("fp32", "topk")):
        cell = {"diloco.inner_steps": h, "codec": codec}
        size = dict.fromkeys(TRAFFIC, 1000 // h)
        cell_runs(study, cell, [2.0 + h / 100, 2.1 + h / 100], bytes=size)
    cell_runs(study, {"diloco.inner_steps": 64, "codec": "topk"}, [math.inf], diverged=True)
    text = write_report(study, against="", recipe=None).text
    for name in ("loss", "curves", "bytes", "axis-H"):
        assert f"![{name}]({name}.svg)" in text
        svg = (study / "report" / f"{name}.svg").read_text()
        assert svg.startswith("<?xml")
        assert (study / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_no_two_lines_look_the_same_and_colours_are_told_apart() -> None:
    looks = [tuple(style.look(number).values()) for number in range(28)]
    assert len(set(looks)) == 28
    # Brightness alone tells neighbours apart, for who sees no colour
    light = [sum(w * int(c[i : i + 2], 16) for w, i in ((0.3, 1), (0.59, 3), (0.11, 5)))
             for c in style.COLOURS]  # fmt: skip
    assert all(abs(a - b) > 8 for a, b in itertools.pairwise(light))


def test_without_matplotlib_the_tables_are_there(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_cells(study)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(LabError, match=r"figures need matplotlib: pip install 'pww\[lab\]' \(the"):
        write_report(study, against="", recipe=None)
    assert (study / "report" / "table.csv").read_text().count("\n") == 3
    assert "## Losses" in (study / "report" / "table.md").read_text()


def test_text_that_would_break_a_table_does_not(study: Path) -> None:
    predict(study, claim(claim="a | b\nc"))
    two_cells(study)
    table = section(report(study).text, "Predictions")
    assert "| a \\| b c " in table
    assert len({line.replace("\\|", "").count("|") for line in table.splitlines() if line}) == 1
