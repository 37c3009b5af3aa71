"""The lab's grid on a real Slurm: one array, and the runs that this machine makes, bit for bit."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_box import Box

from pww.config import paths
from pww.lab import app
from pww.lab.records import read_run
from pww.log import read_json_lines

SITE = (
    "site=slurm", "site.queue.partition=gpu", f"site.queue.python='{sys.executable}'",
    "site.queue.time='00:05:00'",
)  # fmt: skip
CHARLM = (
    "workers=3", "lab.steps=4", "diloco.inner_steps=2", "lab.eval_windows=2", "lab.log_every=1",
    "lab.seeds=2", "task.text=tinyshakespeare",
)  # fmt: skip
GRID = (*CHARLM, "codec=fp32,int4", "merge=mean,median", "-m")
QUADRATIC = ("task=quadratic", "lab.steps=200", "lab.eval_every=100", "task.chains=2")


@pytest.fixture
def study(submitter: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """study(NAME): its folder, in a project whose queue is the box."""
    submitter()
    text = tmp_path / "tinyshakespeare" / "input.txt"
    text.parent.mkdir()
    text.write_text("Ann:\nSo it is.\n\nBob:\nIt is not.\n\n" * 50)
    monkeypatch.setenv("PWW_DATA", str(tmp_path))
    return lambda name: tmp_path / "outputs" / "lab" / name


def jobs(study: Path) -> list[dict[str, str]]:
    return list(read_json_lines(study / "jobs" / "jobs.jsonl"))  # type: ignore[arg-type]


def runs(study: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in study.glob("*/result.json")}


def logs(study: Path) -> str:
    return "".join(f"--- {p}\n{p.read_text()}" for p in sorted(study.glob("jobs/*/slurm/*.log")))


def test_a_grid_is_one_array_whose_runs_are_those_made_here(
    study: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    queued, here = study("queued"), study("here")
    assert app.start([*SITE, *GRID, "lab.study=queued", "launcher.wait=true"]) == 0, logs(queued)
    said = capsys.readouterr().out.splitlines()
    noted = jobs(queued)
    arrays = {job["job"].partition("_")[0] for job in noted}
    assert (len(noted), len(arrays)) == (4, 1)
    assert [job["runs"] for job in noted] == [
        [f"{job['cell']}-s0", f"{job['cell']}-s1"] for job in noted
    ]
    sweeps = f"hydra.sweep.dir={here.parent / 'sweeps'}"
    assert app.start([*GRID, "lab.study=here", sweeps]) == 0
    told = capsys.readouterr().out.splitlines()
    assert said[-4:] == told, "each cell's line, as it is told here"
    assert runs(queued).keys() == runs(here).keys()
    assert len(runs(here)) == 8
    for name, folder in runs(here).items():
        other = runs(queued)[name]
        assert {p.name for p in folder.iterdir()} == {p.name for p in other.iterdir()}
        assert (folder / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
        one, two = (json.loads((f / "result.json").read_text()) for f in (folder, other))
        assert {**one, "seconds": 0} == {**two, "seconds": 0}
        mine, theirs = read_run(folder).config, read_run(other).config
        assert {k for k in mine if mine[k] != theirs[k]} == {"site", "launcher", "lab"}
        assert mine["lab"] == {**theirs["lab"], "study": "here"}

    assert app.start(["report", "study=queued"]) == 0
    table = (queued / "report" / "table.md").read_text()
    assert "codec=int4,merge=median" in table
    assert "not ended well" not in table


def test_what_is_there_is_not_made_again_and_what_is_queued_not_twice(
    study: Callable, box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SITE, *QUADRATIC, "lab.study=x", "-m"]
    folder = study("x")
    assert app.start([*words, "codec=fp32", "launcher.wait=true"]) == 0, logs(folder)
    before = {p: p.stat().st_mtime_ns for p in folder.glob("*/result.json")}
    assert len(before) == 1
    box.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        capsys.readouterr()
        assert app.start([*words, "codec=fp32,randomk"]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[0].startswith("codec=fp32,")
        assert "report study=x" in said.err
        _, last = jobs(folder)
        assert last["cell"].startswith("codec=randomk,")
        assert app.start([*words, "codec=fp32,randomk"]) == 0
        assert f"job {last['job']} in the queue makes it" in capsys.readouterr().out
        assert len(jobs(folder)) == 2
        assert app.start([*words, "codec=randomk", "lab.seeds=2"]) == 2
        assert f"job {last['job']} in the queue makes some" in capsys.readouterr().err
    finally:
        box.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_task_that_fails_is_told_with_its_log(
    study: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cannot write its configuration; the other cells are made."""
    folder = study("x")
    words = [*SITE, *QUADRATIC, "codec=fp32,randomk", "lab.study=x", "-m"]
    assert app.start([*words, "dry=true"]) == 0
    script = capsys.readouterr().out
    (name,) = [word.rpartition("/")[2].rstrip(")") for word in script.split()
               if "codec=randomk" in word and "/jobs/" in word]  # fmt: skip
    broken = folder / name / "config.yaml"
    broken.mkdir(parents=True)  # where a file has to be
    assert app.start([*words, "launcher.wait=true"]) == 1, logs(folder)
    said = capsys.readouterr()
    (job,) = [job for job in jobs(folder) if job["run"] == name]
    log = Path(job["folder"]) / "slurm" / f"{job['job']}_0.log"
    told = f"job {job['job']} ended before its cell was done; its last lines are in "
    assert f"{told}{paths.shown(log.parent)}/{job['job']}_*.log" in said.err
    assert "the cell cannot go on: " in log.read_text()
    assert len(runs(folder)) == 1
    app.start(["report", "study=x"])
    table = " ".join((folder / "report" / "table.md").read_text().split())
    assert f"runs may be missing: jobs/{name} (the logs are there" in table
    broken.rmdir()
    assert app.start([*words, "launcher.wait=true"]) == 0, logs(folder)
    assert told in capsys.readouterr().err
    assert len(runs(folder)) == 2


def test_a_job_whose_time_is_over_goes_on_with_the_runs_that_are_left(
    study: Callable, box: Box
) -> None:
    """Slurm's own signal, after the first of two runs."""
    folder = study("x")
    long = ("lab.steps=1000000", "lab.eval_every=1000000", "lab.seeds=2")
    assert app.start([*SITE, *QUADRATIC, *long, "lab.study=x"]) == 0
    (job,) = jobs(folder)
    end = time.monotonic() + 120
    while not runs(folder):
        assert time.monotonic() < end, logs(folder)
        time.sleep(0.05)
    box.run("scancel", "--signal=USR2", f"{job['job']}.0")
    shown = box.until(job["job"], "COMPLETED", timeout_s=200)
    assert shown["Restarts"] == "1", logs(folder)
    assert "the time is over: 1 of 2 runs are left" in logs(folder)
    assert len(runs(folder)) == 2
