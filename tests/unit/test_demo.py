"""The demonstration's words, and a verdict that goes red when what the processes did is wrong."""

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from lone_replica import Lone, Pull, alone

from pww import demo
from pww.central.ledger import Ledger
from pww.demo import QUICK, parse
from pww.errors import ConfigError, StateError
from pww.log import JsonLines, read_json_lines

# ---------------------------------------------------------------------------------- the words


def test_the_defaults() -> None:
    plan = parse([])
    assert (plan.sites, plan.kill, plan.late, plan.overrides) == (2, False, False, QUICK)


def test_our_keys_are_taken_out_and_the_rest_goes_to_everybody() -> None:
    plan = parse(["data=tinyshakespeare", "sites=3", "kill=1", "late=1", "diloco.inner_steps=20"])
    assert (plan.sites, plan.kill, plan.late) == (3, True, True)
    assert plan.overrides == (*QUICK, "data=tinyshakespeare", "diloco.inner_steps=20")


@pytest.mark.parametrize(
    "value", ["0", "9", "-1", "", "two", "2.0", "1e1", "²", "٣", " 2", "1" * 5000]
)
def test_a_bad_number_of_sites(value: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse([f"sites={value}"])
    assert fault.value.faults == (f"sites={value}: a whole number from 1 to 8",)


@pytest.mark.parametrize("key", ["kill", "late"])
@pytest.mark.parametrize("value", ["2", "yes", "", "true"])
def test_a_bad_switch(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse([f"{key}={value}"])
    assert fault.value.faults == (f"{key}={value}: 0 or 1",)


def test_a_key_without_a_value() -> None:
    with pytest.raises(ConfigError, match=r"^kill=: 0 or 1$"):
        parse(["kill"])


def test_a_killed_sites_blocks_need_somebody() -> None:
    with pytest.raises(ConfigError, match="kill=1 needs sites=2 or more"):
        parse(["sites=1", "kill=1"])
    assert parse(["sites=1", "kill=1", "late=1"]).kill
    assert parse(["sites=1"]).sites == 1


@pytest.mark.parametrize(
    "word",
    ["site=lumi", "replica=z", "run.name=x", "central.url=none", "central.port=1", "resume=auto",
     "central.aggregator_port=2", "dry=true", "+run.name=x", "++dry=true", "~resume"],
)  # fmt: skip
def test_what_the_demonstration_sets_itself_is_refused(word: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse([word])
    key = word.lstrip("+~").partition("=")[0]
    assert str(fault.value) == f"{word}: the demo sets {key} itself; leave it out"


def test_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as fault:
        parse(["sites=x", "late=2", "replica=z", "kill=7"])
    assert len(fault.value.faults) == 4


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_starts_nothing(word: str, capsys) -> None:
    assert demo.main([word, "sites=2"]) == 0
    assert "sites=N" in capsys.readouterr().out


def test_a_fault_is_a_sentence_and_exit_code_2(capsys, monkeypatch) -> None:
    monkeypatch.setattr(demo.pww_log, "setup", lambda **_: None)
    assert demo.main(["sites=none", "late=maybe"]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "sites=none: a whole number from 1 to 8", "late=maybe: 0 or 1"
    ]  # fmt: skip
    assert demo.main(["diloco.inner_steps=abc"]) == 2
    assert "diloco.inner_steps" in capsys.readouterr().err


# -------------------------------------------------------------------------------- the verdict


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run to its end, one delta of it rejected; its folder is the central's and the site's."""
    ranks = alone()
    lone = Lone(tmp_path_factory.mktemp("demo") / "run", ranks, trainer=Pull(nan_in=(2,)))
    lone.train()
    ranks.close()
    return lone.run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def judge(run: Path, *sites: Path, capsys) -> tuple[int, dict]:
    replicas = {"local/a": run, **{f"local/{site.name}": site for site in sites}}
    code = demo._judge(run, replicas)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def draws(run: Path) -> list[dict]:
    return read_json_lines(run / "draws.jsonl")


def rewrite(file: Path, rows: list[dict]) -> None:
    file.unlink(missing_ok=True)
    lines = JsonLines(file)
    for row in rows:
        lines.write(row)
    lines.close()


def test_a_good_run_is_green_and_counted(run: Path, capsys) -> None:
    code, told = judge(run, capsys=capsys)
    held_out = [row for row in read_json_lines(run / "metrics.jsonl") if row["split"] == "eval"]
    assert code == 0
    assert told == {
        "blocks": 11, "committed": 11, "duplicates": 0, "missing": 0, "merges": 6,
        "held_out_first": held_out[0]["loss"], "held_out_last": held_out[-1]["loss"],
    }  # fmt: skip
    assert len(draws(run)) == 7, "a rejected delta's draws are on record and do not count"


def test_a_draw_log_that_is_there_twice_is_red(run: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(run, tmp_path / "twin")
    code, told = judge(run, tmp_path / "twin", capsys=capsys)
    assert code == 1
    assert (told["duplicates"], told["missing"]) == (11, 0)


def test_one_window_drawn_twice_is_red(run: Path, capsys) -> None:
    rows = draws(run)
    rows[0]["windows"].append(rows[0]["windows"][0])
    rewrite(run / "draws.jsonl", rows)
    code, told = judge(run, capsys=capsys)
    assert (code, told["duplicates"], told["missing"]) == (1, 1, 0)


def test_a_row_that_is_gone_is_red(run: Path, capsys) -> None:
    rewrite(run / "draws.jsonl", draws(run)[1:])
    code, told = judge(run, capsys=capsys)
    assert (code, told["duplicates"], told["missing"]) == (1, 0, 2)


def test_one_window_that_was_not_drawn_is_red(run: Path, capsys) -> None:
    rows = draws(run)
    rows[-1]["windows"].pop()
    rewrite(run / "draws.jsonl", rows)
    code, told = judge(run, capsys=capsys)
    assert (code, told["missing"]) == (1, 1)


def test_draws_under_another_deltas_name_are_red(run: Path, capsys) -> None:
    rows = draws(run)
    rows[0]["delta"] = "f" * 32
    rewrite(run / "draws.jsonl", rows)
    assert judge(run, capsys=capsys)[0] == 1


def test_books_that_lost_a_commit_are_red(run: Path, capsys) -> None:
    ledger = Ledger(run / "central" / "ledger.sqlite")
    with ledger.transaction() as tx:
        assert tx.execute("UPDATE deltas SET outcome = 'rejected' WHERE round = 3") == 1
    ledger.close()
    code, told = judge(run, capsys=capsys)
    assert code == 1
    assert told["missing"] == 2


def test_books_that_contradict_themselves_are_red_whatever_was_drawn(run: Path, capsys) -> None:
    ledger = Ledger(run / "central" / "ledger.sqlite")
    with ledger.transaction() as tx:
        tx.execute("UPDATE run SET round = round + 1")
    ledger.close()
    code, told = judge(run, capsys=capsys)
    assert code == 1
    assert (told["committed"], told["duplicates"], told["missing"]) == (11, 0, 0)


def test_two_sites_with_two_thetas_are_told_apart(run: Path, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other"
    other.mkdir()
    rows = read_json_lines(run / "metrics.jsonl")
    held_out = [row for row in rows if row["split"] == "eval"]
    rewrite(other / "metrics.jsonl", held_out)
    assert judge(run, other, capsys=capsys)[0] == 0
    held_out[3]["state_hash"] = "0" * 64
    rewrite(other / "metrics.jsonl", held_out)
    with pytest.raises(StateError) as fault:
        demo._judge(run, {"local/a": run, "local/other": other})
    assert "round 3: theta " in str(fault.value)
    assert "0" * 64 in str(fault.value)


def test_no_evaluation_is_null_and_no_fault(run: Path, capsys) -> None:
    (run / "metrics.jsonl").unlink()
    code, told = judge(run, capsys=capsys)
    assert code == 0
    assert (told["held_out_first"], told["held_out_last"]) == (None, None)


# ------------------------------------------------------------------------------ when to kill


def test_the_middle_of_a_phase(tmp_path: Path) -> None:
    assert demo._inside_a_phase(tmp_path) == ""
    lines = JsonLines(tmp_path / "metrics.jsonl")

    def train(round_: int, done: int) -> str:
        lines.write({"split": "train", "round": round_, "phase_step": done, "phase_steps": 40})
        return demo._inside_a_phase(tmp_path)

    assert train(0, 10) == "", "the first phase has no theta of others yet"
    assert train(1, 10) == "step 10 of 40"
    assert train(1, 20) == "step 20 of 40"
    assert train(1, 30) == "", "it might be over before the signal comes"
    lines.write({"split": "outer", "round": 2})
    assert demo._inside_a_phase(tmp_path) == ""
    lines.close()


def test_names_and_ports_are_free(tmp_path: Path) -> None:
    assert demo.free_name(tmp_path, "demo") == "demo-1"
    (tmp_path / "demo-1").mkdir()
    (tmp_path / "demo-2-logs").mkdir()
    assert demo.free_name(tmp_path, "demo") == "demo-3"
    ports = demo.free_ports(3)
    assert len(set(ports)) == 3


def test_a_child_is_killed_with_its_children_and_shows_its_last_lines(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('\\n'.join(str(n) for n in range(30)), child.pid, flush=True)\n"
        "child.wait()\n"
    )
    child = demo.Child("a", [sys.executable, "-c", code], tmp_path / "a.log")
    never = threading.Event()

    def until(ready) -> bool:
        return any(ready() or never.wait(0.01) for _ in range(3000))

    assert until(lambda: (tmp_path / "a.log").read_text().count("\n") == 30)
    assert child.code() is None
    lines = child.tail().splitlines()
    assert len(lines) == 15
    assert lines[0] == "    a: 15"
    status = Path(f"/proc/{lines[-1].split()[-1]}/stat")
    child.kill()
    child.kill()
    assert child.code() == -9
    try:
        assert until(lambda: not status.exists() or status.read_text().split()[2] == "Z")
    except AssertionError:
        os.kill(int(status.parent.name), signal.SIGKILL)
        raise
