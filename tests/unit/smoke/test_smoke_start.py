"""`python -m pww.smoke` in this process, its ranks stood in for by a line of Python."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pww.smoke import __main__ as smoke

RANKS = "import sys, os, pathlib; run = pathlib.Path(sys.argv[1]); "


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """start(words, does="…"): the ranks are `python -c does RUN`."""

    def started(*words: str, does: str) -> int:
        def command(folder: Path, *, ranks: int, as_json: bool) -> list[str]:
            return [sys.executable, "-c", RANKS + does, str(folder)]

        monkeypatch.setattr(smoke, "command", command)
        return smoke.start([f"run.root={tmp_path / 'runs'}", *words])

    return started


def test_pass_is_the_last_line(
    start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(does="(run / 'verdict').write_text('PASS\\n')") == 0
    assert capsys.readouterr().out == "PASS\n"
    (run,) = (tmp_path / "runs").iterdir()
    assert {"config.yaml", "code.json", "verdict"} <= {p.name for p in run.iterdir()}


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("os.kill(os.getpid(), 9)", "the ranks ended with exit code 137 and said nothing"),
        ("sys.exit(3)", "the ranks ended with exit code 3 and said nothing"),
        ("(run / 'verdict').write_text('PASS'); sys.exit(1)", "the ranks ended with exit code 1"),
        ("(run / 'verdict').write_text('FAIL: bad'); sys.exit(1)", "bad"),
    ],
)
def test_fail_is_the_last_line_and_has_the_reason(
    does: str, why: str, start: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(does=does) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"FAIL: {why}")


def test_json(start: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert start("json=true", does="sys.exit(3)") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "FAIL"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["-m", "seed=1,2"], "-m: a smoke test has one verdict; start one at a time\n"),
        (["resume=auto"], "resume=auto: a smoke test goes on with no run; leave it out\n"),
        (["diloco.overlap=true"], "diloco.overlap=true: a replica alone has no network to hide"),
        (["sed=1"], "sed=1: no such key or group"),
    ],
)
def test_what_is_refused_before_anything_is_made(
    words: list[str], fault: str, start: Callable[..., int], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert start(*words, does="") == 2
    said = capsys.readouterr()
    assert said.err.startswith(fault)
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_dry(start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("dry=true", does="") == 0
    assert capsys.readouterr().out == ("dry: nothing was started. 1 rank(s) would be tested here\n")
    assert list(tmp_path.iterdir()) == []


def test_one_rank_is_a_process_and_several_have_torchs_launcher(tmp_path: Path) -> None:
    assert smoke.command(tmp_path, ranks=1, as_json=False)[1:] == [
        "-m", "pww.smoke.rank", str(tmp_path)
    ]  # fmt: skip
    assert smoke.command(tmp_path, ranks=3, as_json=True)[1:] == [
        "-m", "pww.smoke.local", "3", str(tmp_path), "json"
    ]  # fmt: skip
