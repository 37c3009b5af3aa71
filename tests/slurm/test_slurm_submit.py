"""Submitting, on a real Slurm: what is queued, with which environment, and how it ends."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pww.config import paths


def test_a_job_is_queued_without_m_and_never_runs_where_it_was_typed(
    submitter: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    site = submitter()
    assert site.train("run.name=0123") == 0
    (job,) = site.jobs()
    said = capsys.readouterr()
    assert said.out == f"job {job['job']}: {paths.shown(site.outputs / '0123')}\n"
    assert "queued: slurm, partition gpu, 1 node(s) x 1 ranks" in said.err
    assert (job["run"], job["replica"], job["ranks"]) == ("0123", "slurm/a", 1)
    site.box.until(job["job"], "COMPLETED")
    environ = json.loads((site.outputs / "0123" / "environ-0.json").read_text())
    assert environ["SLURM_JOB_ID"] == job["job"]


def test_nothing_of_the_submitting_shell_binds_the_ranks(
    submitter: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these was inherited by somebody's job once, and bound it for days."""
    site = submitter(ranks=2)
    foreign = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPUS_PER_TASK": "64",
        "SLURM_MEM_PER_CPU": "7", "SLURM_NTASKS": "77", "SBATCH_PARTITION": "nowhere",
        "PMIX_RANK": "5", "RANK": "3", "WORLD_SIZE": "9", "HIP_VISIBLE_DEVICES": "6",
        "CUDA_VISIBLE_DEVICES": "7", "SLURM_EXPORT_ENV": "NONE",
    }  # fmt: skip
    for name, value in {**foreign, "MY_OWN": "kept"}.items():
        monkeypatch.setenv(name, value)
    assert site.train("run.name=x", "launcher.wait=true") == 0
    for rank in range(2):
        environ = json.loads((site.outputs / "x" / f"environ-{rank}.json").read_text())
        assert environ["MY_OWN"] == "kept"
        assert not {"PMIX_RANK", "RANK", "WORLD_SIZE", "SBATCH_PARTITION"} & set(environ)
        # Slurm's own, for this job: cores reach the step, and one variable names the devices
        assert environ["SLURM_CPUS_PER_TASK"] == "2"
        assert environ["SLURM_NTASKS"] == "2"
        assert environ.get("SLURM_MEM_PER_CPU") != "7"
        assert "mask_cpu:0x1" not in environ.get("SLURM_CPU_BIND", "")
        names = [name for name in environ if name.endswith("_VISIBLE_DEVICES")]
        assert names in ([], ["ROCR_VISIBLE_DEVICES"], ["CUDA_VISIBLE_DEVICES"])
        assert all(environ[name] == "0,1" for name in names)


def test_a_rank_that_raises_fails_the_job_and_ends_the_others(
    submitter: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    site = submitter("raise", ranks=4)
    assert site.train("run.name=x", "launcher.wait=true") == 1
    (job,) = site.jobs()
    assert site.box.job(job["job"])["JobState"] == "FAILED"
    folder = site.outputs / "x"
    log = (folder / "slurm" / f"{job['job']}_1.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert log.endswith("RuntimeError: broken on purpose\n")
    said = capsys.readouterr().err
    assert f"job {job['job']} ended before its run was finished" in said
    assert "Traceback" not in said


def test_each_shape_of_a_sweep_has_its_own_allocation(submitter: Callable) -> None:
    """One array for those that want the same; nothing is pickled on the way."""
    site = submitter()
    words = ["site.ranks_per_node=8", "optim.batch_windows=16"]
    assert site.train("site.num_nodes=1,2", "seed=1,2", *words, "launcher.wait=true", "-m") == 0
    jobs = site.jobs()
    assert len({job["folder"] for job in jobs}) == 4
    arrays = {job["job"].partition("_")[0] for job in jobs}
    assert len(arrays) == 2
    for job in jobs:
        shown = site.box.job(job["job"])
        assert shown["JobState"] == "COMPLETED"
        assert shown["NumNodes"] == str(job["nodes"])
        assert shown["NumTasks"] == str(job["nodes"] * 8)
        assert (Path(job["folder"]) / "finished").exists()
    assert not [p for p in site.outputs.rglob("*") if p.suffix in (".pkl", ".pickle")]


def test_an_array_longer_than_the_cluster_takes_is_split(submitter: Callable) -> None:
    site = submitter()
    assert site.train("seed=range(7)", "-m") == 0
    jobs = site.jobs()
    arrays = [job["job"].partition("_")[0] for job in jobs]
    assert [arrays.count(one) for one in dict.fromkeys(arrays)] == [5, 2]
    for number, job in enumerate(jobs):
        site.box.until(job["job"], "COMPLETED")
        assert f"seed: {number}\n" in (Path(job["folder"]) / "config.yaml").read_text()


def test_dry_shows_the_script_and_changes_nothing(
    submitter: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    site = submitter()
    assert site.train("seed=1,2,3", "dry=true", "-m") == 0
    said = capsys.readouterr()
    assert said.out.count("#!/bin/bash\n") == 1
    assert "#SBATCH --array=0-2%3\n" in said.out
    assert list(site.project.iterdir()) == []
    assert site.box.run("squeue", "-h") == ""


def test_what_slurm_refuses_leaves_nothing_behind(
    submitter: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    site = submitter()
    assert site.train("site.queue.partition=nowhere", "run.name=x") == 1
    said = capsys.readouterr().err
    assert "sbatch" in said
    assert "invalid partition specified: nowhere" in said
    assert not (site.outputs / "x").exists()
    assert site.jobs() == []


def test_a_run_in_the_queue_is_not_queued_twice(
    submitter: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    site = submitter("raise")
    assert site.train("run.name=x") == 0
    (job,) = site.jobs()
    resume = f"resume={site.outputs / 'x'}"
    assert site.train(resume) == 2
    assert f"{resume}: its job {job['job']} is still in the queue" in capsys.readouterr().err
    site.box.run("scancel", job["job"])
    site.box.until(job["job"], "CANCELLED")
    assert site.train(resume, "site.queue.time='00:07:00'") == 0
    again = site.jobs()[1]
    assert again["folder"] == job["folder"]
    assert site.box.job(again["job"])["TimeLimit"] == "00:07:00"


@cache
def other_python() -> Path | None:
    """An interpreter of another minor version than this one, installed beside it or on PATH."""
    for minor in range(20, 8, -1):
        name = f"python3.{minor}"
        found = sorted(Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/{name}"))
        found += map(Path, filter(None, [shutil.which(name)]))
        for path in found if minor != sys.version_info.minor else []:
            if subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0:
                return path
    return None


@pytest.mark.skipif(other_python() is None, reason="no Python of another minor version here")
def test_ranks_may_have_another_python(submitter: Callable) -> None:
    """Text and a path reach the job, nothing that one interpreter wrote for itself."""
    rank = Path(__file__).parents[1] / "programs" / "slurm_rank.py"
    site = submitter(python=f"{other_python()} {rank}", ranks=2)
    assert site.train("run.name=x", "launcher.wait=true") == 0, site.log(site.outputs / "x")
    environ = json.loads((site.outputs / "x" / "environ-1.json").read_text())
    assert environ["PYTHON_OF_THE_RANK"] != f"3.{sys.version_info.minor}"
    left = [p for p in site.outputs.rglob("*") if p.suffix in (".pkl", ".pickle", ".pyc")]
    assert left == []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose worker only says which one it is."""
    folder = tmp_path / "pww"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "worker.py").write_text(WORKER.format("as submitted"))
    monkeypatch.setattr(paths, "PACKAGE", folder)
    return folder


WORKER = """
import pathlib, sys
(pathlib.Path(sys.argv[1]) / "said").write_text("{}")
(pathlib.Path(sys.argv[1]) / "finished").touch()
"""


def test_a_queued_job_runs_the_code_that_was_submitted(
    submitter: Callable, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = submitter(python=sys.executable)
    site.box.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        assert site.train("run.name=x") == 0
        (package / "worker.py").write_text(WORKER.format("as edited later"))
    finally:
        site.box.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    (job,) = site.jobs()
    site.box.until(job["job"], "COMPLETED")
    assert (site.outputs / "x" / "said").read_text() == "as submitted"
    # Going on takes the code of today, and says so
    (site.outputs / "x" / "finished").unlink()
    assert site.train(f"resume={site.outputs / 'x'}", "launcher.wait=true") == 0
    assert (site.outputs / "x" / "said").read_text() == "as edited later"
    assert "the code has changed since this run was started" in capsys.readouterr().err


def test_a_job_whose_code_is_gone_says_so(submitter: Callable, package: Path) -> None:
    site = submitter(python=sys.executable)
    site.box.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        assert site.train("run.name=x") == 0
        shutil.rmtree(site.outputs / "code")
    finally:
        site.box.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    (job,) = site.jobs()
    site.box.until(job["job"], "FAILED")
    assert "the code that was submitted is gone; submit again: resume=" in site.log(
        site.outputs / "x"
    )
