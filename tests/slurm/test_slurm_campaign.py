"""Two machines with a Slurm each, a central, and queues that do what queues do.

One site starts at once and meets its time limit, the other waits, is cancelled in the middle of a
phase and submitted again. At the end every block is in the model once, and nothing is left over.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Project
from federation import Federation, mid_phase
from slurm_box import Box

from pww.log import read_json_lines

PROGRAMS = ROOT / "tests" / "programs"


CORPUS = (
    "data=tinyshakespeare", "data.name=campaign", "data.files=[campaign.txt]", "data.roots=[data]",
    "data.tokenizer.vocab_size=300", "data.max_windows=640", "model.seq_len=32",
)  # fmt: skip
"""Eight phases of twenty steps."""
TIME = ("site.queue.time='00:15:00'", "site.queue.signal_s=100")


@pytest.fixture
def other_box(box: Box) -> Iterator[Box]:
    made = Box()
    try:
        made.start()
        yield made
    finally:
        made.stop()


def submit(federation: Federation, box: Box, name: str, *words: str) -> str:
    """Queues (or goes on with) a site's run; the job's id."""
    project = federation.project
    project.env.update(box.env, RANK_DOES="closed", STEP_S="0.5")
    done = project.run(
        "-m", "pww.train", "site=slurm", f"site.name={name}", "site.queue.partition=gpu",
        "site.ranks_per_node=1", "site.queue.node_gpus=8", "site.device=cpu",
        "site.cores_per_rank=2", f"site.queue.python='{sys.executable} {PROGRAMS}/slurm_rank.py'",
        *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1].rstrip(":")


def until(ready: Callable[[], object], what: str, timeout_s: float = 240) -> None:
    end = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < end, f"no {what} after {timeout_s} s"
        time.sleep(0.2)


@pytest.mark.timeout(900)
def test_a_campaign(
    box: Box, other_box: Box, project: Project, free_ports: tuple[int, int]
) -> None:
    (project.folder / "data").mkdir(exist_ok=True)
    lines = (f"line {i} says {i * 7919 % 1000} and {i * 104729 % 1000}.\n" for i in range(6000))
    (project.folder / "data" / "campaign.txt").write_text("".join(lines))
    federation = Federation(project, free_ports, *CORPUS)
    url = f"central.url=http://127.0.0.1:{free_ports[0]}"
    new = (*federation.overrides, url)
    central = federation.central("central.linger_s=20")
    other_box.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")
    alpha = submit(federation, box, "alpha", *new, "run.name=alpha", *TIME)
    beta = submit(federation, other_box, "beta", *new, "run.name=beta", *TIME)

    # Alpha meets its limit: so much is left that Slurm sends its signal when it looks next
    central.until(lambda: mid_phase(federation, "alpha"), timeout_s=240)
    minutes = int(box.job(alpha)["RunTime"].split(":")[1])
    box.run("scontrol", "update", f"JobId={alpha}", f"TimeLimit={minutes + 2}")
    central.until(lambda: box.job(alpha)["Restarts"] == "1", timeout_s=120)
    box.run("scontrol", "update", f"JobId={alpha}", "TimeLimit=15")

    # Beta's queue lets it in late; it is cancelled, and submitted again
    assert other_box.job(beta)["JobState"] == "PENDING"
    other_box.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    central.until(lambda: mid_phase(federation, "beta", round=0), timeout_s=240)
    other_box.run("scancel", beta)
    other_box.until(beta, "CANCELLED")
    folder = project.outputs / "beta"
    again = submit(federation, other_box, "beta", f"resume={folder}")
    assert again != beta

    assert central.wait(400) == 0, central.text()
    for site, job in ((box, alpha), (other_box, again)):
        site.until(job, "COMPLETED", timeout_s=120)
        until(lambda site=site: not site.run("squeue", "-h"), "empty queue", 60)
    federation.check_exactly_once()
    for run in ("alpha", "beta"):
        assert (project.outputs / run / "finished").exists()
    assert len(read_json_lines(project.outputs / "jobs.jsonl")) == 3
    log = (project.outputs / "alpha" / "slurm" / f"{alpha}_0.log").read_text()
    assert log.count("alpha/a: loading the engine") >= 2
    assert orphans(project.outputs) == []


def orphans(outputs: Path) -> list[str]:
    """Processes that still name a run of ours."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"{outputs}/" in line:
                found.append(line)
    return found
