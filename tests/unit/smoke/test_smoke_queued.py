"""A smoke test as a job: what the batch shell says last, whatever the ranks left."""

import subprocess
from pathlib import Path

import pytest

from pww.clock import ManualClock
from pww.config.load import compose
from pww.errors import ConfigError
from pww.launcher import batch
from pww.smoke.queued import PROGRAM, queue

SITE = ["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=2"]


def ended(run: Path, code: int, *left: tuple[str, str]) -> tuple[int, list[str]]:
    """The last lines of the batch script of a job whose ranks ended with `code`."""
    for name, text in left:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)
    text = "\n".join([f"run={run}", "job=7", f"(exit {code})", *PROGRAM.teardown])
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_shell_passes_on_what_rank_0_found(tmp_path: Path) -> None:
    left = ("checks.txt", "  groups  fine\n"), ("verdict", "PASS\n")
    assert ended(tmp_path, 0, *left) == (0, ["  groups  fine", "PASS"])
    left = ("checks.txt", "! groups  odd\n"), ("verdict", "FAIL: groups: odd\n")
    assert ended(tmp_path, 1, *left) == (1, ["! groups  odd", "FAIL: groups: odd"])


def test_the_shell_speaks_for_ranks_that_cannot(tmp_path: Path) -> None:
    code, lines = ended(tmp_path, 137, ("checks.txt", ""))
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("FAIL: the ranks ended with exit code 137 and said nothing; their ")
    assert lines[0].endswith(f"{tmp_path}/slurm/7_*.log")
    assert (tmp_path / "verdict").read_text() == f"{lines[0]}\n"


def test_the_shell_names_the_ranks_that_left_a_reason(tmp_path: Path) -> None:
    left = [(f"faults/{n}", f"rank {n} fell\n") for n in range(2)]
    assert ended(tmp_path, 1, *left) == (1, ["FAIL: rank 0 fell;rank 1 fell"])


def test_a_pass_before_a_rank_failed_is_none(tmp_path: Path) -> None:
    code, lines = ended(tmp_path, 9, ("verdict", "PASS\n"))
    assert code == 1
    assert lines == [f"FAIL: the ranks ended with exit code 9 and said nothing; their last lines "
                     f"are in {tmp_path}/slurm/7_*.log"]  # fmt: skip


def test_ranks_that_end_well_without_a_verdict_did_not(tmp_path: Path) -> None:
    assert ended(tmp_path, 0)[0] == 1


def test_its_script_is_shell_and_never_queues_itself_again(tmp_path: Path) -> None:
    config = compose([*SITE, "run.root=/runs", "run.name=x"])
    text = batch.script(
        config, runs=[Path("/runs/x")], code=Path("/runs/code/0f"), program=PROGRAM
    )  # fmt: skip
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    (step,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert step.endswith(' python -m pww.smoke.rank "$run"')
    assert "--kill-on-bad-exit=1 " in step
    assert "scontrol requeue" not in text
    assert text.index('rm -rf "$run/faults"') < text.index("\nsrun ") < text.index("\nstatus=$?\n")


def test_dry_shows_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    config = compose([*SITE, "dry=true"])
    assert queue([config], clock=ManualClock(), as_json=False) == []
    said = capsys.readouterr()
    assert said.out.count("#!/bin/bash\n") == 1
    assert "-m pww.smoke.rank" in said.out
    assert "dry: nothing was queued" in said.err


def test_json_of_what_is_only_queued_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^json=true: .*; add launcher.wait=true$"):
        queue([compose(SITE)], clock=ManualClock(), as_json=True)


def test_several_verdicts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^-m: 2 smoke tests have 2 verdicts; start one at a ti"):
        queue([compose(SITE)] * 2, clock=ManualClock(), as_json=False)
