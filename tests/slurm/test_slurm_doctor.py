"""What the doctor is told by a real Slurm, on its login node and inside a job."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT

from pww import doctor


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
    doctor.main([*words, "json=true"])
    said = json.loads(capsys.readouterr().out)
    return {one["what"]: one for one in said["findings"]}


def test_on_a_login_node(submitter: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    site = submitter(python=sys.executable)
    before = site.box.run("scontrol", "show", "jobs")
    found = findings(capsys, *site.words)
    assert found["queue"]["told"].startswith("partition gpu is up, at most 1-00:00:00 on ")
    assert found["queue"]["told"].endswith(" of 4 nodes, arrays of 5")
    assert found["account"]["told"] == "no limits of accounts are known here"
    assert found["job"]["told"].startswith("Slurm would take it; would start at ")
    assert found["signal"]["told"] == "SIGUSR2 from this process reaches a rank's Python"
    # What is only shown to Slurm is not queued, and what only looks makes nothing
    assert site.box.run("scontrol", "show", "jobs") == before
    assert list(site.project.iterdir()) == []


def test_what_slurm_would_refuse(submitter: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    site = submitter(python=sys.executable)
    found = findings(capsys, *site.words, "site.queue.time='1-00:00:01'")
    assert found["queue"]["told"] == (
        "site.queue.partition=gpu: site.queue.time=1-00:00:01: at most 1-00:00:00 there"
    )
    found = findings(capsys, *site.words, "site.queue.partition=nowhere")
    assert found["queue"]["told"].endswith("Slurm knows no such partition")
    assert found["job"]["state"] == "bad"
    assert "invalid partition specified: nowhere" in found["job"]["told"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_inside_a_job(wrapped: bool, submitter: Callable, tmp_path: Path) -> None:
    """Slurm's own signal, to a step of the command that would run a rank."""
    shell = tmp_path / "stays.sh"
    shell.write_text('"$@"\nexit 0\n')
    python = f"bash {shell} {sys.executable}" if wrapped else sys.executable
    site = submitter(python=python)
    words = ["-m", "pww.doctor", "json=true", *site.words, f"run.root={tmp_path}/runs"]
    script = tmp_path / "job.sh"
    command = shlex.join([sys.executable, *words])
    script.write_text(
        f"#!/bin/bash\n#SBATCH --partition=gpu --ntasks=1 --cpus-per-task=2\ncd {ROOT}\n"
        f"PYTHONPATH={ROOT} {command} >{tmp_path}/said\necho $? >{tmp_path}/code\n"
    )
    job = site.box.run("sbatch", f"--output={tmp_path}/log", str(script)).split()[-1]
    site.box.until(job, "COMPLETED", timeout_s=120)
    said = json.loads((tmp_path / "said").read_text())
    found = {one["what"]: one for one in said["findings"]}
    assert found["site"]["told"] == f"slurm, inside job {job}: nothing is missing"
    told = found["signal"]["told"]
    if wrapped:
        assert "SIGUSR2 from Slurm" in told
        assert "ended the rank" in told
        assert "a wrapper must `exec` the command after it" in told
    else:
        assert told == "SIGUSR2 from Slurm reaches a rank's Python"
    assert said["usable"] is not wrapped
    assert (tmp_path / "code").read_text() == f"{int(wrapped)}\n"
