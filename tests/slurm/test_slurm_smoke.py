"""`python -m pww.smoke` as a job, on a real Slurm: its batch log ends in one line, PASS or FAIL."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pww.log import read_json_lines
from pww.smoke import __main__ as smoke

SMALL = (
    "data=tinyshakespeare", "data.name=sample", "data.files=[text.txt]", "data.roots=[data]",
    "data.tokenizer.vocab_size=300", "data.max_windows=80", "model.seq_len=32", "model.dim=32",
    "model.num_layers=1", "model.hidden_dim=48", "darl.block_windows=4", "optim.batch_windows=4",
    "parallel=ddp", "diloco.replicas=2", "diloco.inner_steps=4",
)  # fmt: skip


def jobs(root: Path) -> list[dict[str, str]]:
    return list(read_json_lines(root / "jobs.jsonl"))  # type: ignore[arg-type]


@pytest.fixture
def text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = (f"line {i} says {i * 7919 % 1000} and {i * 104729 % 1000}.\n" for i in range(4000))
    (tmp_path / "data" / "text.txt").write_text("".join(lines))


@pytest.mark.usefixtures("text")
def test_two_real_ranks_pass_and_the_batch_log_says_so(
    submitter: Callable, capfd: pytest.CaptureFixture[str]
) -> None:
    """Queued as it is typed; the code, data and folders are those that a run would have."""
    site = submitter(ranks=2, python=sys.executable)
    assert smoke.start([*site.words, *SMALL]) == 0
    (job,) = jobs(site.outputs / "smoke")
    folder = Path(job["folder"])
    assert f"slurm/{job['job']}_batch.log will be PASS or FAIL" in capfd.readouterr().err
    shown = site.box.until(job["job"], "COMPLETED", "FAILED", timeout_s=200)
    log = (folder / "slurm" / f"{job['job']}_batch.log").read_text()
    assert shown["JobState"] == "COMPLETED", f"{log} {site.log(folder)}"
    lines = log.splitlines()
    assert lines[-1] == "PASS"
    assert [line for line in lines if line.startswith(("PASS", "FAIL"))] == ["PASS"]
    assert any("a known parameter moved by 0.5000" in line for line in lines)
    assert "% at H=500" in lines[-2]


def test_a_rank_that_is_killed_fails_the_job_with_a_last_line(
    submitter: Callable, capfd: pytest.CaptureFixture[str]
) -> None:
    site = submitter("killed", ranks=2)
    assert smoke.start([*site.words, "launcher.wait=true", "json=true"]) == 1
    said = capfd.readouterr()
    last = json.loads(said.out.splitlines()[-1])
    assert last["verdict"] == "FAIL"
    assert last["reason"].startswith("the ranks ended with exit code ")
    (job,) = jobs(site.outputs / "smoke")
    assert site.box.job(job["job"])["JobState"] == "FAILED"
    log = Path(job["folder"], "slurm", f"{job['job']}_batch.log").read_text().splitlines()
    assert log[-1] == f"FAIL: {last['reason']}"
    assert any("task 1" in line and "Killed" in line for line in log), log
