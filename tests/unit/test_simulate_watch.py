"""What `pww.simulate` makes of processes that fail, hang, or are done too soon."""

import threading

import pytest

from pww.config import paths
from pww.errors import StateError, Stopped
from pww.simulate import __main__ as simulate
from pww.simulate.plan import Plan

NOBODY = "http://127.0.0.1:9"


class Family:
    """Processes that end as they are told; nothing is started."""

    def __init__(self, plan: Plan, ends: dict[str, int | None]) -> None:
        self.plan, self._ends = plan, ends
        self.started: list[str] = []
        self.killed: list[str] = []

    def start(self, name: str) -> None:
        self.started.append(name)

    def codes(self) -> dict[str, int | None]:
        return {name: self._ends.get(name, 0) for name in self.started}

    def was_killed(self, name: str) -> bool:
        return name in self.killed

    def kill(self, name: str) -> None:
        self.killed.append(name)

    def inside_a_phase(self, name: str) -> str:
        return "batch 1 of 4"

    def tails(self, names: list[str]) -> str:
        return f"tails of {', '.join(names)}"


def watch(family: Family, stop: threading.Event | None = None) -> None:
    simulate._watch(family, NOBODY, stop or threading.Event())  # type: ignore[arg-type]


def status(monkeypatch: pytest.MonkeyPatch, committed: int) -> None:
    told = {"round": 1, "coverage": {"committed": committed}}
    monkeypatch.setattr(simulate, "_status", lambda url: told)


def test_all_end_by_themselves() -> None:
    family = Family(Plan(replicas=2, kill=0, late=0), {})
    watch(family)
    assert family.started == ["central", "a", "b"]


def test_a_process_that_fails_ends_it_with_its_last_lines() -> None:
    with pytest.raises(StateError, match=r"\Ab ended with an error:\ntails of b\Z"):
        watch(Family(Plan(replicas=2, kill=0, late=0), {"a": None, "b": 3}))


def test_a_hang_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "GIVE_UP_S", -1.0)
    with pytest.raises(StateError, match=r"\Anot done after -1 s:\ntails of central, a\Z"):
        watch(Family(Plan(replicas=1, kill=0, late=0), {"a": None}))


def test_a_run_that_was_over_before_the_kill_shows_nothing() -> None:
    with pytest.raises(StateError, match=r"before a could be killed or join: give it more blocks"):
        watch(Family(Plan(replicas=2, kill=1, late=0), {}))


def test_a_kill_and_a_late_join_at_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    status(monkeypatch, 250)
    family = Family(Plan(), {"c": -9})
    family.killed.append("c")  # its code is no failure
    watch(family)
    assert family.started == ["central", "a", "c", "d", "b"]
    assert family.killed == ["c", "c"]


def test_a_stop_is_one_sentence() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped, match="simulate: stopped; its processes are ended"):
        watch(Family(Plan(replicas=1, kill=0, late=0), {"a": None}), stop)


def test_nobody_answers() -> None:
    assert simulate._status(NOBODY) is None


def test_ctrl_c_while_a_process_starts_is_no_traceback(tmp_path, monkeypatch, capsys) -> None:
    """It reaches the forkserver too: its pipe ends."""

    def ended(*_: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setattr(simulate, "_watch", ended)
    monkeypatch.setattr(simulate.signal, "signal", lambda *_: None)  # pytest's stay
    assert simulate.main(["replicas=1", "kill=0", "late=0", "blocks=10"]) == 130
    assert "simulate: stopped; its processes are ended" in capsys.readouterr().err
