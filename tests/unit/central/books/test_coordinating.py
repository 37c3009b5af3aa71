"""The loop of a coordinator alone: it expires, says what is missing, ends without its ledger."""

import logging
import threading
from pathlib import Path

import pytest

from pww.central.coordinating import TICK_S, Desk, serve_books
from pww.central.ending import End
from pww.central.member_feed import MemberFeed
from pww.clock import ManualClock
from pww.errors import StateError


class Turns(ManualClock):
    """Time passes in the loop's pauses only; `then` happens at the given ones."""

    def __init__(self, then) -> None:
        super().__init__()
        self._then, self._turn = then, 0

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._turn += 1
        self._then(self._turn)
        return super().wait(event, timeout_s)


def loop(desk, then, *, feed: MemberFeed | None = None) -> None:
    """Runs until `then(turn, stop)` sets the stop."""
    stop = threading.Event()
    clock = Turns(lambda turn: then(turn, stop))
    end = End(desk.books, desk.folder, linger_s=0.0, clock=clock)
    serve_books(
        Desk(desk.books, desk.ledger, desk.space), feed or MemberFeed(), end, stop, clock=clock
    )


def test_time_passes_for_leases_and_members(desk) -> None:
    site = desk.site("s/a")
    site.acquire(3)

    def then(turn: int, stop: threading.Event) -> None:
        desk.clock.advance(12.0)
        if turn == 4:
            stop.set()

    loop(desk, then)
    assert [member.replica for member in desk.books.silent()] == ["s/a"]
    assert desk.coverage() == (0, 0, 20)


def test_a_missing_aggregator_is_named_now_and_then(desk, caplog) -> None:
    caplog.set_level(logging.INFO, "pww.central.coordinating")
    desk.site("s/a")
    feed = MemberFeed()
    half_minute = round(30 / TICK_S)

    def then(turn: int, stop: threading.Event) -> None:
        feed.attach(turn >= 2 * half_minute + 10)
        if turn == 5 * half_minute:
            stop.set()

    loop(desk, then, feed=feed)
    assert caplog.text.count("no aggregator is attached, so nothing is merged: start it on") == 2


def test_without_its_ledger_it_ends(desk) -> None:
    def then(turn: int, stop: threading.Event) -> None:
        if turn == 2:
            Path(desk.ledger.path).unlink()
        assert turn < 5

    with pytest.raises(StateError, match=r"ledger\.sqlite is gone while the central runs: .*Put"):
        loop(desk, then)
