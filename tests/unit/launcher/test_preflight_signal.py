"""A rank's command is sent the queue's signal: who hears it, who dies of it, who never starts."""

import sys
from functools import cache
from pathlib import Path

import pytest

from pww.config import paths
from pww.config.load import compose
from pww.config.schema import Config
from pww.launcher import preflight_signal
from pww.launcher.finding import Finding


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@cache
def composed(python: str, *words: str) -> Config:
    site = ["site=slurm", "site.queue.partition=gpu", "site.ranks_per_node=1"]
    return compose([*site, f"site.queue.python='{python}'", *words])


def told(python: str, *words: str) -> Finding:
    (one,) = preflight_signal.findings(composed(python, *words))
    return one


def wrapper(folder: Path, text: str) -> str:
    (folder / "wrap.sh").write_text(text)
    return f"bash wrap.sh {sys.executable}"


def test_a_plain_interpreter_hears_it() -> None:
    assert told(sys.executable) == Finding(
        "signal", "good", "SIGUSR2 from this process reaches a rank's Python"
    )


def test_setup_is_run_before_it(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mypython").symlink_to(sys.executable)
    assert told("mypython").state == "warning"
    assert told("mypython", "site.queue.setup=['PATH=$PWD/modules:$PATH']").state == "good"


def test_a_wrapper_that_execs(tmp_path: Path) -> None:
    assert told(wrapper(tmp_path, 'export X=1\nexec "$@"\n')).state == "good"


def test_a_wrapper_that_stays_dies_of_it(tmp_path: Path) -> None:
    one = told(wrapper(tmp_path, '"$@"\nexit 0\n'))
    assert one.state == "bad"
    assert "ended the rank (signal SIGUSR2); a wrapper must `exec`" in one.told


def test_a_wrapper_that_shields_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are not those that the queue knows."""
    monkeypatch.setattr(preflight_signal, "CODE", preflight_signal.CODE.replace(", 15)", ", 0.3)"))
    one = told(wrapper(tmp_path, "trap '' USR2\nsetsid \"$@\" &\nwait\n"))
    assert one.state == "bad"
    assert "did not reach the rank (exit code 0)" in one.told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo no container here >&2; exit 3", "no container here"),
        ("exit 3", "exit code 3"),
        ("echo hello", "exit code 0"),
    ],
)
def test_what_does_not_start(text: str, why: str, tmp_path: Path) -> None:
    one = told(wrapper(tmp_path, text))
    assert one.state == "warning"
    assert one.told == (
        f"a rank's Python does not start here, so signals were not tried ({why}); run this inside "
        "a job too"
    )


def test_what_never_says_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_signal, "START_S", 0.2)
    monkeypatch.setattr(preflight_signal, "HEAR_S", 0.1)
    one = told(wrapper(tmp_path, "sleep 60"))
    assert (one.state, "exit code -9" in one.told) == ("warning", True)


def test_a_site_without_a_queue_sends_none() -> None:
    assert list(preflight_signal.findings(compose([]))) == []


def test_no_bash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No such file or directory: 'bash'" in told(sys.executable).told
