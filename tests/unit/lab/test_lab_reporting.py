"""The commands that train nothing: their words, their sentences, their exit codes."""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
from lab_runs import cell_runs, finished

from pww.clock import ManualClock
from pww.lab import reporting
from pww.lab.report import style
from pww.lab.studies.catalogue import RECIPES
from pww.log import read_json_lines

CLAIM = (
    "claim=top-k is nearly free", "cell=codec=topk", "against=codec=fp32",
    "quantity=loss_ratio", "low=0.99", "high=1.05",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lab"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is test_lab_report.py's; here it would only take time."""
    monkeypatch.setattr("pww.lab.report.build.figures", lambda *_: {})


def run(*words: str, root: Path) -> int:
    return reporting.start([*words, f"root={root}"], clock=ManualClock())


def test_predict_run_report(
    root: Path, no_figures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", "study=s", *CLAIM, root=root) == 0
    assert "predicted in" in capsys.readouterr().out
    (row,) = read_json_lines(root / "s" / "log.jsonl")
    assert row["cell"] == "codec=topk"
    assert datetime.fromisoformat(str(row["at"])).timestamp() == ManualClock().wall()
    cell_runs(root / "s", {"codec": "topk"}, [2.0, 2.1, 2.2])
    cell_runs(root / "s", {"codec": "fp32"}, [1.99, 2.08, 2.19])
    assert run("report", "study=s", root=root) == 0
    out = capsys.readouterr().out
    assert "| confirmed" in out
    assert (
        out == (root / "s" / "report" / "table.md").read_text() + "\n" + out.splitlines()[-1] + "\n"
    )
    assert out.splitlines()[-1].startswith("written: ")
    assert run("predict", "study=s", *CLAIM, root=root) == 0  # the same again
    assert run("predict", "study=s", *CLAIM[:-1], "high=1.5", root=root) == 1
    assert "its outcome is in (codec=topk-s0)" in capsys.readouterr().err


def test_what_is_wrong_with_a_study_is_told_and_the_report_written(
    root: Path, no_figures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cell_runs(root / "s", {"codec": "topk"}, [2.0, 2.1])
    (root / "s" / "codec=topk-s0" / "result.json").write_text("{")
    assert run("report", "study=s", root=root) == 1
    said = capsys.readouterr()
    assert "codec=topk-s0/result.json: is damaged" in said.err
    assert "written: " in said.out
    assert (root / "s" / "codec=topk-s0" / "result.json").read_text() == "{"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "study"], ["study: write key=value; keys are study, against, root"]),
        (["report", "studdy=x"], ["studdy=x: keys are study, against, root; did you mean study?"]),
        (["report", "study=a", "study=b"], ["study=b: study is given twice"]),
        (["report", "study=../x"], ["study=../x: is the name of one folder"]),
        (["report", "study="], ["study=: is the name of one folder"]),
        (["report", "against=H=1"], ["against= is a cell of one study: give study=NAME too"]),
        (["predict", "study=s"], ["claim= is missing", "cell= is missing", "low= is missing"]),
        (
            ["predict", "study=s", *CLAIM[:3], "quantity=loss_rato", *CLAIM[4:]],
            ["quantity=loss_rato: is one of loss, loss_difference, loss_ratio, diverged; did you"],
        ),
        (["predict", "study=s", *CLAIM[:-1], "high=x"], ["high=x: is no number (-inf and inf are"]),
        (["study", "tooy"], ["study tooy: is one of first, toy,", "did you mean toy?"]),
    ],
)
def test_wrong_words_are_refused_before_anything_is_done(
    words: list[str], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reporting.start(words) == 2
    err = capsys.readouterr().err
    for sentence in said:
        assert sentence in err


def test_a_claim_or_a_cell_that_is_none_is_a_sentence(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study=s", *CLAIM[1:], "claim="]
    assert run("predict", *words, root=root) == 1
    assert "claim is empty" in capsys.readouterr().err
    assert run("predict", "study=s", *CLAIM[:1], "cell=topk", *CLAIM[2:], root=root) == 1
    assert "topk: a cell is its overrides" in capsys.readouterr().err
    assert run("report", "study=s", root=root) == 1
    assert "study=s: no such folder" in capsys.readouterr().err
    assert not root.exists()


def test_all_studies_and_what_the_sources_found(
    root: Path, no_figures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", root=root) == 1
    assert "python -m pww.lab study lists those to run" in capsys.readouterr().err
    cell_runs(root / "toy", {"method": "sync"}, [2.27, 2.28])
    cell_runs(root / "toy", {"method": "demo", "codec.keep": 256}, [2.07, 2.08])
    cell_runs(root / "mine", {"codec": "topk"}, [2.0, 2.1])
    (root / "empty").mkdir()
    (root / ".sweeps" / "1").mkdir(parents=True)
    assert run("report", root=root) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [f"empty: study=empty: no run in {root / 'empty'} yet"]
    with (root / "agreement.csv").open(newline="") as file:
        rows = {row["finding"]: row for row in csv.DictReader(file)}
    assert {row["study"] for row in rows.values()} == {"toy"}
    assert rows["toy: DeMo is below dense"]["agrees"] == "yes"
    assert rows["toy: DiLoCo, H = 50"]["agrees"] == "not run"
    assert "no finished run of the cell" in rows["toy: DiLoCo, H = 50"]["why"]
    assert rows["toy: dense AdamW"]["the source"] == "2.277 ± 0.090"
    text = (root / "agreement.md").read_text()
    assert text in said.out
    assert "Not run: first, h-sweep," in text
    assert (root / "mine" / "report" / "table.md").exists()


def test_the_studies_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert reporting.start(["study"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(RECIPES)
    assert reporting.start(["study", "topk", "dry=true", "lab.steps=100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RECIPES["topk"].lines)
    assert lines[0].startswith("python -m pww.lab lab.study=topk lab.seeds=3 'lab.tune.lr=[")
    assert all(line.endswith(" lab.steps=100 -m") for line in lines)
    assert reporting.start(["report", "-h"]) == 0
    assert "python -m pww.lab predict study=NAME" in capsys.readouterr().out


class Started:
    """In place of processes: what was to be started, and how they end."""

    def __init__(self, codes: Sequence[int], root: Path) -> None:
        self.codes, self.root, self.commands = list(codes), root, []

    def __call__(self, command: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        self.commands.append(command)
        code = self.codes.pop(0)
        if code == 0:
            finished(self.root / "identity", {"line": len(self.commands)}, 2.0)
        return subprocess.CompletedProcess(command, code)


@pytest.mark.parametrize(("codes", "code"), [([0, 0], 0), ([3], 3), ([0, 130], 130), ([-9], 137)])
def test_a_study_is_run_line_by_line_up_to_a_fault(
    root: Path, no_figures: None, monkeypatch: pytest.MonkeyPatch, codes: list[int], code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    started = Started(codes, root)
    monkeypatch.setattr(subprocess, "run", started)
    assert reporting.start(["study", "identity", f"lab.root={root}"]) == code
    assert len(started.commands) == len(codes)
    assert all(c[:4] == [sys.executable, "-m", "pww.lab", "lab.study=identity"]
               for c in started.commands)  # fmt: skip
    said = capsys.readouterr()
    if code:
        assert (
            f"ended with {code}; what is finished stays, and the same command goes on" in said.err
        )
    else:
        assert "# Study identity" in said.out


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, json; from pww.lab import reporting; "
        "reporting.start(['study', 'toy', 'dry=true']); "
        "print(json.dumps([m for m in ('torch', 'matplotlib', 'scipy', 'pydantic')"
        " if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_pyplot_is_never_imported(root: Path) -> None:
    """It would want a display, and keep every figure."""
    cell_runs(root / "s", {"codec": "topk"}, [2.0, 2.1])
    code = (
        "import sys; from pww.lab import reporting; "
        f"reporting.start(['report', 'study=s', 'root={root}']); "
        "sys.exit(int('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (root / "s" / "report" / "loss.png").exists()
    assert not style.wants_matplotlib()
