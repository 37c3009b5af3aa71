"""What the scheduler says of a job: partition, account, and a trial of the script itself."""

from functools import cache
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.config import paths
from pww.config.load import compose
from pww.launcher import preflight_queue
from pww.launcher.finding import Finding

SITE = (
    "site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1", "site.queue.time='02:00:00'",
)  # fmt: skip
PARTITION = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts={allow} MaxNodes={nodes} MaxTime={time} "
    "State={state} TotalCPUs=64 TotalNodes=4"
)
STARTS = "sbatch: Job 9 to start at 2026-11-30T12:00:00 using 4 processors on nodes n1"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("LOGNAME", "me")
    say(tmp_path, "squeue", "12 N/A\n13 0")
    say(tmp_path, "sacctmgr", "echo no accounting >&2; exit 1", run=True)
    say(tmp_path, "sbatch", f'test "$1" = --test-only && echo "{STARTS}" >&2', run=True)
    partition(tmp_path)


def say(folder: Path, name: str, text: str, *, run: bool = False) -> None:
    body = text if run else f"cat <<'END'\n{text}\nEND"
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def partition(
    folder: Path, *, allow: str = "ALL", nodes: str = "UNLIMITED", time: str = "2-00:00:00",
    state: str = "UP",
) -> None:  # fmt: skip
    line = PARTITION.format(allow=allow, nodes=nodes, time=time, state=state)
    say(
        folder, "scontrol",
        f'case "$*" in *partition*) echo "{line}" ;; *) echo "MaxArraySize = 1001" ;; esac',
        run=True,
    )  # fmt: skip


composed = cache(lambda words: compose([*SITE, *words]))


def told(*words: str) -> list[Finding]:
    config = composed(words)
    return list(preflight_queue.findings(config, clock=ManualClock()))


def by_name(*words: str) -> dict[str, Finding]:
    return {one.what: one for one in told(*words)}


def test_all_is_well(tmp_path: Path) -> None:
    assert told() == [
        Finding(
            "queue", "good",
            "partition gpu is up, at most 2-00:00:00 on unlimited of 4 nodes, arrays of 1001",
        ),
        Finding("account", "good", "no limits of accounts are known here"),
        Finding("job", "good", "Slurm would take it; would start at 2026-11-30T12:00:00 as things "
                               "are"),
    ]  # fmt: skip
    assert not list((tmp_path).glob("outputs*")), "nothing is made"


@pytest.mark.parametrize(
    ("limits", "words", "sentence"),
    [
        ({"time": "01:59:59"}, (), "site.queue.time=02:00:00: at most 01:59:59 there"),
        ({"time": "30:00"}, (), "site.queue.time=02:00:00: at most 30:00 there"),
        ({"nodes": "2"}, ("site.num_nodes=3",), "site.num_nodes=3: at most 2 there"),
        ({}, ("site.num_nodes=5",), "site.num_nodes=5: at most 4 there"),
        (
            {"allow": "one,two"}, ("site.queue.account=three",),
            "site.queue.account=three: it takes only one,two",
        ),
    ],
)  # fmt: skip
def test_what_the_partition_does_not_allow(
    limits: dict[str, str], words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    partition(tmp_path, **limits)
    one = by_name(*words, "optim.batch_windows=60")["queue"]
    assert (one.state, one.told) == ("bad", f"site.queue.partition=gpu: {sentence}")


@pytest.mark.parametrize("time", ["UNLIMITED", "02:00:00", "120:00", "120", "0-2", "1-00"])
def test_a_limit_that_is_long_enough(time: str, tmp_path: Path) -> None:
    partition(tmp_path, time=time)
    assert by_name()["queue"].state == "good"


def test_a_partition_that_is_down(tmp_path: Path) -> None:
    partition(tmp_path, state="DRAIN")
    one = by_name()["queue"]
    assert (one.state, one.told[:22]) == ("warning", "partition gpu is drain")


def test_no_such_partition(tmp_path: Path) -> None:
    say(tmp_path, "scontrol", "echo Partition gpu not found >&2; exit 1", run=True)
    one = by_name()["queue"]
    assert one.told == "site.queue.partition=gpu: Slurm knows no such partition"


def test_slurm_is_down(tmp_path: Path) -> None:
    say(tmp_path, "scontrol", "echo no controller >&2; exit 1", run=True)
    (one,) = told()
    assert (one.state, one.told.endswith("failed: no controller")) == ("bad", True)


def test_accounts(tmp_path: Path) -> None:
    rows = "project_1||10|2|1-00:00:00\nproject_2|other|1|1|00:01:00\nodd line"
    say(tmp_path, "sacctmgr", rows)
    one = by_name("site.queue.account=project_1")["account"]
    assert (one.state, one.told) == (
        "bad",
        "project_1: 2 of your jobs are queued, at most 2, 10 run at a time; wait, or scancel some",
    )
    one = by_name("site.queue.account=project_3")["account"]
    assert one.told == "site.queue.account=project_3: is none of yours (project_1)"
    say(tmp_path, "sacctmgr", "project_1||||")
    one = by_name()["account"]
    assert (one.state, one.told) == ("good", "project_1: 2 of your jobs are queued")
    say(tmp_path, "sacctmgr", "project_1||||01:00:00")
    one = by_name()["account"]
    assert one.told == "site.queue.time=02:00:00: account project_1 has at most 01:00:00"


def test_a_rule_that_only_slurm_knows(tmp_path: Path) -> None:
    say(tmp_path, "sbatch", "echo 'allocation failure: QOSMaxGRESPerUser' >&2; exit 1", run=True)
    one = by_name()["job"]
    assert (one.state, one.told) == (
        "bad",
        "Slurm would not take it: sbatch --test-only script.sh failed: allocation failure: "
        "QOSMaxGRESPerUser",
    )
    say(tmp_path, "sbatch", "thank you")
    assert by_name()["job"].told == "Slurm would take it; thank you"


def test_where_its_commands_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert told() == []
    assert list(preflight_queue.findings(compose([]), clock=ManualClock())) == []
