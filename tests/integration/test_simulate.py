"""`python -m pww.simulate`: its words, a run with a kill and a late join, and an audit that turns
red when either side of it is falsified.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT, Project

from pww.central.coverage import BATCHES, DRAWS, Coverage, coverage
from pww.central.ledger import Ledger
from pww.errors import ConfigError
from pww.log import JsonLines, read_json_lines
from pww.simulate import __main__ as simulate
from pww.simulate.plan import Plan, parse
from pww.wire import Offer

README = ROOT / "README.md"

# ------------------------------------------------------------------------------------- the words


def test_the_words() -> None:
    assert parse([]) == Plan(replicas=4, kill=1, late=1, blocks=1000, seed=0)
    assert parse(["replicas=2", "kill=0", "late=1", "blocks=50", "seed=7"]) == Plan(2, 0, 1, 50, 7)


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("replicas=0", "replicas=0: a whole number from 1 to 16"),
        ("replicas=17", "replicas=17: a whole number from 1 to 16"),
        ("kill=yes", "kill=yes: a whole number from 0 to 15"),
        ("late=-1", "late=-1: a whole number from 0 to 15"),
        ("blocks=", "blocks=: a whole number from 1 to 100000"),
        ("seed=1.5", "seed=1.5: a whole number from 0 to 2147483647"),
        ("seed=١", "seed=١: a whole number from 0 to 2147483647"),  # noqa: RUF001
        ("sites=2", "sites=2: the words are replicas=N, kill=N, late=N, blocks=N, seed=N"),
        ("central.port=1", "central.port=1: the words are replicas=N, kill=N, late=N, blocks=N, "
         "seed=N"),
        ("kill=4", "kill=4 late=1 needs replicas=6 or more: one has to start at once and stay"),
        ("blocks=39", "blocks=39 are too few for replicas=4: give blocks=40 or more"),
    ],
)  # fmt: skip
def test_a_bad_word_is_refused(word: str, fault: str) -> None:
    with pytest.raises(ConfigError) as why:
        parse([word])
    assert str(why.value) == fault


def test_a_word_given_twice_and_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as why:
        parse(["seed=1", "seed=2", "x", "kill=z"])
    assert len(why.value.faults) == 3
    assert why.value.faults[0] == "seed=2: seed is given twice"


@pytest.mark.parametrize("replicas", range(1, 17))
def test_those_who_are_killed_and_those_who_are_late_are_not_the_same(replicas: int) -> None:
    for kill in range(replicas):
        for late in range(replicas - kill):
            plan = Plan(replicas=replicas, kill=kill, late=late)
            assert len(plan.killed) == len({*plan.killed}) == kill
            assert len(plan.latecomers) == len({*plan.latecomers}) == late
            assert not {*plan.killed} & {*plan.latecomers}
            if replicas >= kill + late + 2:
                assert plan.names[-1] not in {*plan.killed, *plan.latecomers}
    speeds = Plan(replicas=replicas).speeds
    assert speeds == tuple(sorted(speeds))
    assert speeds[-1] / speeds[0] == pytest.approx(8 if replicas > 1 else 1)


def test_help_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--help", "replicas=x"]) == 0
    assert "replicas=N" in capsys.readouterr().out


def test_a_bad_word_is_a_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate.pww_log, "setup", lambda **_: None)
    assert simulate.main(["replicas=many"]) == 2
    assert capsys.readouterr().err == "replicas=many: a whole number from 1 to 16\n"


# --------------------------------------------------------------------------------------- the run


@pytest.fixture(scope="module")
def finished(project_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int, Path]:
    """What the README's run, with a kill and a late join, printed, its exit code and its folder."""
    (command,) = re.findall("^python -m pww.simulate .*$", README.read_text(), re.MULTILINE)
    env = {**os.environ, "PYTHONPATH": str(project_copy), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, *command.split()[1:]],
        cwd=project_copy, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    made = project_copy / "outputs" / "simulate-1"
    folder = tmp_path_factory.mktemp("simulated") / "run"
    shutil.move(made, folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr, done.returncode, folder


def test_one_is_killed_one_is_late_and_every_block_is_in_once(
    finished: tuple[str, int, Path],
) -> None:
    said, _, _ = finished
    lines = said.splitlines()
    row = json.loads(next(line for line in lines if line.startswith("{")))
    assert row == {"blocks": 1000, "covered": 1000, "duplicates": 0, "missing": 0}
    assert any("killed c in the middle of a phase, at batch " in line for line in lines)
    assert any("b joins" in line for line in lines)
    assert "Traceback" not in said
    assert "Warning" not in said


def test_the_work_of_the_killed_is_on_record_and_done_by_others(
    finished: tuple[str, int, Path],
) -> None:
    result = covered(finished[2])
    assert result.ok
    assert result.abandoned_windows > 0
    assert sum(result.shares.values()) >= result.blocks
    assert set(result.shares) == {"local/a", "local/b", "local/c", "local/d"}


def covered(run: Path) -> Coverage:
    return coverage(run / "central", {f"local/{name}": run / name for name in "abcd"})


@pytest.fixture
def run(finished: tuple[str, int, Path], tmp_path: Path) -> Path:
    """A copy to falsify; it is green."""
    copy = shutil.copytree(finished[2], tmp_path / "run")
    assert covered(copy).ok
    return copy


def rewrite(path: Path, rows: list[dict[str, object]]) -> None:
    path.unlink()
    lines = JsonLines(path)
    for row in rows:
        lines.write(row)
    lines.close()


def blocks_of(run: Path, delta: object) -> int:
    """Blocks of a delta, by the offer in the ledger."""
    ledger = Ledger.read_only(run / "central" / "central" / "ledger.sqlite")
    (text,) = ledger.rows("SELECT offer FROM deltas WHERE delta = ?", str(delta))[0]
    ledger.close()
    return sum(len(leased.span) for leased in Offer.model_validate_json(str(text)).spans)


@pytest.fixture
def ledger(run: Path) -> Iterator[Ledger]:
    books = Ledger(run / "central" / "central" / "ledger.sqlite")
    yield books
    books.close()


def test_a_row_of_a_draw_log_twice_is_red(run: Path) -> None:
    rows = read_json_lines(run / "d" / DRAWS)
    rewrite(run / "d" / DRAWS, [*rows, rows[1]])
    result = covered(run)
    assert not result.ok
    assert result.duplicates == blocks_of(run, rows[1]["delta"])
    assert result.missing == 0
    assert f"merged delta {rows[1]['delta']} is in 2 rows of the draw logs" in result.differences


def test_a_row_in_two_replicas_logs_is_red(run: Path) -> None:
    row = read_json_lines(run / "d" / DRAWS)[0]
    rewrite(run / "a" / DRAWS, [*read_json_lines(run / "a" / DRAWS), row])
    result = covered(run)
    assert result.duplicates == blocks_of(run, row["delta"])
    assert any(each.startswith("local/a offered ") for each in result.differences)


def test_a_row_of_a_draw_log_removed_is_red(run: Path) -> None:
    rows = read_json_lines(run / "d" / DRAWS)
    rewrite(run / "d" / DRAWS, rows[1:])
    result = covered(run)
    assert not result.ok
    assert result.missing == result.blocks - result.covered == blocks_of(run, rows[0]["delta"])
    assert result.duplicates == 0
    assert f"merged delta {rows[0]['delta']} is in 0 rows of the draw logs" in result.differences


def test_one_window_that_another_replica_drew_too_is_red(run: Path) -> None:
    rows = read_json_lines(run / "d" / DRAWS)
    other = read_json_lines(run / "a" / DRAWS)[0]
    rows[0]["windows"] = [*rows[0]["windows"], other["windows"][0]]  # type: ignore[misc,index]
    rewrite(run / "d" / DRAWS, rows)
    result = covered(run)
    assert (result.duplicates, result.missing) == (1, 0)
    assert "local/d offered 1 windows that it never drew" in result.differences


def test_a_merged_delta_that_is_unmarked_is_red(run: Path, ledger: Ledger) -> None:
    delta = read_json_lines(run / "d" / DRAWS)[0]["delta"]
    blocks = blocks_of(run, delta)
    with ledger.transaction() as tx:
        assert tx.execute("UPDATE deltas SET outcome = 'rejected' WHERE delta = ?", str(delta)) == 1
    result = covered(run)
    assert not result.ok
    assert result.missing == blocks
    assert any(each.startswith("committed, not merged") for each in result.differences)


def test_a_merged_delta_that_is_added_is_red(run: Path, ledger: Ledger) -> None:
    row = read_json_lines(run / "d" / DRAWS)[0]
    added = "f" * 32
    ((text,),) = ledger.rows("SELECT offer FROM deltas WHERE delta = ?", str(row["delta"]))
    offer = Offer.model_validate_json(str(text)).model_copy(update={"delta": added})
    with ledger.transaction() as tx:
        tx.execute(
            "INSERT INTO deltas (delta, replica, incarnation, staleness, offer, received_wall, "
            "outcome, round, reason, decided) SELECT ?, replica, incarnation, staleness, ?, "
            "received_wall, outcome, round, reason, decided + 100000 FROM deltas WHERE delta = ?",
            added, offer.model_dump_json(), str(row["delta"]),
        )  # fmt: skip
    # nobody says that he drew it …
    result = covered(run)
    assert not result.ok
    assert (result.duplicates, result.missing) == (0, 0)
    assert f"merged delta {added} is in 0 rows of the draw logs" in result.differences
    assert any("doubled" in each for each in result.differences)
    # … or somebody does
    rewrite(run / "d" / DRAWS, [*read_json_lines(run / "d" / DRAWS), {**row, "delta": added}])
    assert covered(run).duplicates == blocks_of(run, added)


def test_draws_that_the_inner_loop_did_not_make_are_red(run: Path) -> None:
    rows = read_json_lines(run / "d" / BATCHES)
    rewrite(run / "d" / BATCHES, rows[1:])
    result = covered(run)
    assert result.differences == ("local/d offered 2 windows that it never drew",)
    assert not result.ok


def test_the_share_of_each_is_held_to_the_books(run: Path) -> None:
    """Two replicas' logs swapped: the union is the same, whose it is is not."""
    for name in (DRAWS, BATCHES):
        shutil.move(run / "a" / name, run / "x")
        shutil.move(run / "d" / name, run / "a" / name)
        shutil.move(run / "x", run / "d" / name)
    result = covered(run)
    assert (result.duplicates, result.missing) == (0, 0)
    assert any(each.startswith("local/a has ") for each in result.differences)
    assert any(each in result.render() for each in result.differences)


def test_ctrl_c_leaves_no_process(project: Project) -> None:
    child = project.start("-m", "pww.simulate", "replicas=2", "kill=0", "late=0", name="simulate")
    folder = project.outputs / "simulate-1"
    logs = [folder / name / "log" for name in ("central", "a", "b")]
    child.until(lambda: all(log.exists() for log in logs))
    os.kill(child.process.pid, signal.SIGINT)  # what is left would be the parent's to end
    assert child.wait(60) == 130, child.text()
    assert "simulate: stopped; its processes are ended" in child.text()
    assert "Traceback" not in child.text()
    end_s = time.monotonic() + 20  # the server of the forks sees that its parent is gone
    while left := processes_in(project.folder):
        assert time.monotonic() < end_s, left
        time.sleep(0.05)


def processes_in(folder: Path) -> list[str]:
    """Processes whose working folder this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found
