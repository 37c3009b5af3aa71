import io

import pytest
from rich.console import Console

import pww.data.progress
from pww.clock import ManualClock
from pww.data.progress import progress


def test_without_a_terminal_there_is_a_line_every_five_seconds(caplog):
    caplog.set_level("INFO")
    clock = ManualClock()
    with progress("tokenising", total=10_000_000, clock=clock) as advance:
        for _ in range(10):
            clock.advance(2)
            advance(1_000_000)
    assert caplog.messages == [
        "tokenising: 30 % of 10.0 M characters, 0.50 M/s, 14 s left",
        "tokenising: 60 % of 10.0 M characters, 0.50 M/s, 8 s left",
        "tokenising: 90 % of 10.0 M characters, 0.50 M/s, 2 s left",
    ]


@pytest.mark.parametrize("total", [None, 0])
def test_work_of_unknown_size_says_how_far_it_is(caplog, total):
    caplog.set_level("INFO")
    clock = ManualClock()
    with progress("reading", total=total, clock=clock) as advance:
        for _ in range(3):
            clock.advance(2)
            advance(1_000_000)
    assert caplog.messages == ["reading: 3.0 M characters, 0.50 M/s"]


def test_other_units_are_named(caplog):
    caplog.set_level("INFO")
    clock = ManualClock()
    with progress("reading", total=4_000_000, clock=clock, unit="bytes") as advance:
        clock.advance(6)
        advance(3_000_000)
    assert caplog.messages == ["reading: 75 % of 4.0 M bytes, 0.50 M/s, 2 s left"]


def test_short_work_is_silent(caplog):
    caplog.set_level("INFO")
    with progress("tokenising", total=10, clock=ManualClock()) as advance:
        advance(10)
    assert not caplog.records


@pytest.mark.parametrize("total", [10, None])
@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_there_is_a_bar(monkeypatch, fails, total):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(pww.data.progress, "console", lambda: terminal)
    try:
        with progress("tokenising", total=total, clock=ManualClock()) as advance:
            advance(5)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert "tokenising" in screen.getvalue()
