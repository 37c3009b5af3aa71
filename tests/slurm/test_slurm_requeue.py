"""A job's time is over, on a real Slurm: agreed stop, checkpoint, requeue, and on in the same run.

Slurm's own signal comes when it likes, up to a minute early; here `scancel --signal` sends it to
the same processes. The campaign has the real one.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pww.central.audit import audit
from pww.log import read_json_lines
from pww.trainer import interfaces

SMALL = (
    "data=tinyshakespeare", "data.name=sample", "data.files=[text.txt]", "data.roots=[data]",
    "data.tokenizer.vocab_size=300", "data.max_windows=80", "model.seq_len=32",
    "darl.block_windows=4", "diloco.inner_steps=4", "optim.batch_windows=4",
    "metrics.wandb.mode=disabled", "checkpoint.keep=100",
)  # fmt: skip
"""Five phases of four steps."""


def evaluations(folder: Path) -> list[dict[str, object]]:
    rows = read_json_lines(folder / "metrics.jsonl")
    return [row for row in rows if row["split"] == "eval"]


def until(ready: Callable[[], object], what: str, timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < end, f"no {what} after {timeout_s} s"
        time.sleep(0.1)


@pytest.fixture
def text(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = (f"line {i} says {i * 7919 % 1000} and {i * 104729 % 1000}.\n" for i in range(4000))
    (tmp_path / "data" / "text.txt").write_text("".join(lines))


@pytest.mark.usefixtures("text")
def test_a_chain_of_requeues_ends_as_an_uninterrupted_run(
    submitter: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks have no `scontrol` and need none."""
    rank = f"{sys.executable} {Path(__file__).parents[1] / 'programs' / 'slurm_rank.py'}"
    site = submitter("closed", python=f"env PATH=/without-slurm {rank}")
    assert site.train("run.name=whole", *SMALL) == 0
    monkeypatch.setenv("STEP_S", "0.4")
    assert site.train("run.name=cut", *SMALL) == 0
    whole, cut = (site.outputs / job["folder"] for job in site.jobs())
    job = site.jobs()[1]["job"]
    for life in range(1, 4):
        seen = len(evaluations(cut))
        until(lambda seen=seen: len(evaluations(cut)) > seen, f"round in life {life}")
        site.box.run("scancel", "--signal=USR2", job)
        until(lambda life=life: site.box.job(job)["Restarts"] == str(life), f"requeue {life}")
    shown = site.box.until(job, "COMPLETED", timeout_s=120)
    assert shown["Restarts"] == "3", site.log(cut)
    until((whole / "finished").exists, "end of the uninterrupted run")
    # What it came to is what it would have come to
    assert evaluations(cut)[-1]["state_hash"] == evaluations(whole)[-1]["state_hash"]
    assert (cut / "paths.txt").read_text() == "/without-slurm\n" * 4
    log = (cut / "slurm" / f"{job}_0.log").read_text()
    assert log.count("loading the engine") == 4
    assert not (cut / "requeue").exists()


@pytest.mark.usefixtures("text")
def test_a_job_is_queued_again_as_often_as_it_may(
    submitter: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = submitter("closed")
    monkeypatch.setenv("STEP_S", "2")
    assert site.train("run.name=x", *SMALL, "launcher.requeues=0") == 0
    (job,) = site.jobs()
    folder = site.outputs / "x"
    until(lambda: evaluations(folder), "first round")
    site.box.run("scancel", "--signal=USR2", job["job"])
    shown = site.box.until(job["job"], "FAILED")
    assert (shown["Restarts"], shown["ExitCode"]) == ("0", "130:0")
    assert "queued again 0 times already (launcher.requeues)" in site.log(folder)
    assert f"go on with: python -m pww.train resume={folder}" in site.log(folder)


@pytest.mark.usefixtures("text")
def test_replicas_of_an_allocation_are_requeued_together(
    submitter: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas find each other by srun, on one node or on two, and go on where they were."""
    site = submitter("little")
    words = (
        *SMALL,
        "diloco.replicas=2",
        "parallel=ddp",
        "diloco.inner_steps=2",
        "model.seq_len=16",
    )
    nodes = ("site.num_nodes=2", "site.queue.node_gpus=1")
    assert site.train("run.name=whole", *words, "site.ranks_per_node=2") == 0
    monkeypatch.setenv("STEP_S", "0.5")
    assert site.train("run.name=cut", *words, *nodes) == 0
    whole, cut = site.outputs / "whole", site.outputs / "cut"
    job = site.jobs()[1]["job"]
    until(lambda: len(evaluations(cut)) > 1, "round", timeout_s=240)
    site.box.run("scancel", "--signal=USR2", job)
    until(lambda: site.box.job(job)["Restarts"] == "1", "requeue")
    shown = site.box.until(job, "COMPLETED", "FAILED", timeout_s=240)
    assert shown["JobState"] == "COMPLETED", site.log(cut)
    until((whole / "finished").exists, "end of the uninterrupted run", timeout_s=240)
    for run in (whole, cut):
        books = audit(run)
        assert books.ok
        assert books.exactly_once == books.blocks == 20
        rows = [r for r in read_json_lines(run / "metrics.jsonl") if r["split"] == "outer"]
        assert [row["contributors"] for row in rows] == [2] * 5
    assert evaluations(cut)[-1]["state_hash"] == evaluations(whole)[-1]["state_hash"]
    log = (cut / "slurm" / f"{job}_0.log").read_text()
    assert log.count("loading the engine") == 2
    assert not (cut / "requeue").exists()


def test_ranks_on_two_nodes_stop_at_one_step(submitter: Callable) -> None:
    site = submitter("agree", ranks=2)
    words = ("site.num_nodes=2", "site.queue.node_gpus=2")
    assert site.train("run.name=x", *words) == 0
    (job,) = site.jobs()
    folder = site.outputs / "x"
    until(lambda: len(list(folder.glob("going-*"))) == 4, f"four ranks: {site.log(folder)}")
    site.box.run("scancel", "--signal=USR2", job["job"])
    shown = site.box.until(job["job"], "COMPLETED", "FAILED")
    assert shown["JobState"] == "COMPLETED", site.log(folder)
    stopped = [json.loads((folder / f"stopped-{rank}.json").read_text()) for rank in range(4)]
    assert len({one["step"] for one in stopped}) == 1
    # Not left to gloo, which takes what the host's own name means: often loopback
    assert {one["gloo"] for one in stopped} == {interfaces.towards("127.0.0.11")} != {"lo"}


def test_more_ranks_than_the_run_wants_are_refused(submitter: Callable) -> None:
    """A script that was edited: each of two ranks would take the whole batch for its own."""
    site = submitter("agree")
    site.box.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    try:
        assert site.train("run.name=x") == 0
        folder = site.outputs / "x"
        script = folder / "slurm" / "script.sh"
        script.write_text(script.read_text().replace("ntasks-per-node=1", "ntasks-per-node=2"))
    finally:
        site.box.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    job = site.box.run("sbatch", str(script)).split()[-1]
    site.box.until(job, "FAILED")
    assert "srun started 2 task(s), and the run has parallel.ranks=1" in site.log(folder)
