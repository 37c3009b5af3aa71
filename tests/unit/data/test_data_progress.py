import io

import pytest
from rich.console import Console

import pww.data.progress
from pww.clock import ManualClock
from pww.data.progress import progress


def test_without_a_terminal_there_is_a_line_every_five_seconds(caplog):
    caplog.set_level("INFO")
    clock = ManualClock()
    with progress("tokenising", num_chars=10_000_000, clock=clock) as advance:
        for _ in range(10):
            clock.advance(2)
            advance(1_000_000)
    assert caplog.messages == [
        "tokenising: 30 % of 10.0 M characters, 0.50 M/s, 14 s left",
        "tokenising: 60 % of 10.0 M characters, 0.50 M/s, 8 s left",
        "tokenising: 90 % of 10.0 M characters, 0.50 M/s, 2 s left",
    ]


def test_work_of_unknown_size_says_how_far_it_is(caplog):
    caplog.set_level("INFO")
    clock = ManualClock()
    with progress("reading", num_chars=None, clock=clock) as advance:
        for _ in range(3):
            clock.advance(2)
            advance(1_000_000)
    assert caplog.messages == ["reading: 3.0 M characters, 0.50 M/s"]


def test_short_work_is_silent(caplog):
    caplog.set_level("INFO")
    with progress("tokenising", num_chars=10, clock=ManualClock()) as advance:
        advance(10)
    assert not caplog.records


@pytest.mark.parametrize("num_chars", [10, None])
@pytest.mark.parametrize("fails", [False, True])
def test_on_a_terminal_there_is_a_bar(monkeypatch, fails, num_chars):
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(pww.data.progress, "console", lambda: terminal)
    try:
        with progress("tokenising", num_chars=num_chars, clock=ManualClock()) as advance:
            advance(5)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert "tokenising" in screen.getvalue()
