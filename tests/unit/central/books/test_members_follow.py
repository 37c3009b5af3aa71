"""Joins and leaves reach the aggregator's process in order, once, and through restarts of both."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pww.central.books_server import BooksServer
from pww.central.coordinating import AdmittedFirst
from pww.central.member_feed import MemberFeed
from pww.central.member_follower import MemberFollower
from pww.central.membership import Member
from pww.central.remote_books import RemoteBooks
from pww.clock import SystemClock
from pww.errors import Refused

CLOCK, NEVER = SystemClock(), threading.Event()
A, B = (Member(f"s/{name}", digit * 32, f"key {digit}") for name, digit in ("a1", "b2"))


def names(news) -> list[tuple[str, str, bool]]:
    return [(n.replica, n.incarnation[:1], n.joined) for n in news.notes]


# ------------------------------------------------------------------------------------- the feed


def test_the_last_of_each_replica_is_told_until_it_is_seen() -> None:
    feed = MemberFeed()
    feed.joined(A)
    feed.joined(B)
    first = feed.since(0, life="", wait_s=9)
    assert names(first) == [("s/a", "1", True), ("s/b", "2", True)]
    feed.left(A)
    feed.joined(A)
    feed.left(B)
    more = feed.since(first.seq, life=feed.life, wait_s=9)
    assert names(more) == [("s/a", "1", True), ("s/b", "2", False)]
    assert feed.since(more.seq, life=feed.life, wait_s=0).notes == ()
    for life, seen in (("0" * 32, more.seq), (feed.life, 99)):  # numbers of another one
        assert len(feed.since(seen, life=life, wait_s=9).notes) == 2


def test_memory_is_bounded_by_the_replicas() -> None:
    feed = MemberFeed()
    for _ in range(1000):
        feed.joined(A)
        feed.left(A)
    assert len(feed.since(0, life="", wait_s=0).notes) == 1


def test_who_waits_hears_of_the_next() -> None:
    feed = MemberFeed()
    feed.joined(A)
    heard = []
    waiting = threading.Thread(
        target=lambda: heard.append(feed.since(1, life=feed.life, wait_s=30))
    )
    waiting.start()
    feed.joined(B)
    waiting.join(20)
    assert names(heard[0]) == [("s/b", "2", True)]


def test_a_registration_is_settled_when_it_was_obeyed_or_nobody_is_there() -> None:
    feed = MemberFeed()
    feed.joined(A)
    feed.settle(30.0)  # nobody is attached
    feed.attach(True)
    done = threading.Event()

    def settle() -> None:
        feed.settle(30.0)
        done.set()

    threading.Thread(target=settle).start()
    news = feed.since(0, life=feed.life, wait_s=1)
    assert not done.wait(0.2), "told is not obeyed"
    feed.since(news.seq, life=feed.life, wait_s=0)
    assert done.wait(20)
    feed.joined(B)
    done.clear()
    threading.Thread(target=settle).start()
    feed.attach(False)
    assert done.wait(20)
    feed.attach(True)
    feed.settle(0.05)  # … and no longer than that


def test_closing_ends_the_waits() -> None:
    feed = MemberFeed()
    feed.attach(True)
    feed.joined(A)
    waits = [
        threading.Thread(target=feed.settle, args=(60.0,)),
        threading.Thread(target=lambda: feed.since(1, life=feed.life, wait_s=60)),
    ]
    for wait in waits:
        wait.start()
    feed.close()
    for wait in waits:
        wait.join(20)
        assert not wait.is_alive()


# --------------------------------------------------------------------------------- the follower


class Link:
    """Notes what it is told; `faults` are raised, one a call."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.faults: list[Exception] = []

    def joined(self, member: Member) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.told.append(("joined", member.replica))

    def left(self, member: Member) -> None:
        self.told.append(("left", member.replica))


class Side:
    """A coordinator whose members are fed to whoever follows."""

    def __init__(self, desk, path: Path) -> None:
        self.desk, self.path, self.stop = desk, path, threading.Event()
        desk.make_gate = MemberFeed
        desk.restart()
        self.start()

    def start(self) -> None:
        self.feed = self.desk.gate
        self.server = BooksServer(self.desk.books, self.feed, path=self.path, clock=CLOCK)
        self.server.start()

    def restart(self) -> None:
        self.server.close()
        self.desk.restart()
        self.start()


@pytest.fixture
def side(desk, tmp_path: Path) -> Iterator[Side]:
    made = Side(desk, tmp_path / "books" / "socket")
    yield made
    made.server.close()


class Process:
    """The aggregator's process."""

    def __init__(self, side: Side) -> None:
        self.link = Link()
        self.books = RemoteBooks(
            side.path, name="run", clock=CLOCK, stop=side.stop, random=np.random.default_rng(0)
        )
        self.follower = MemberFollower(self.books, self.link, clock=CLOCK)

    def start(self) -> "Process":
        self.follower.start()
        return self

    def until(self, *told: tuple[str, str]) -> None:
        """Returns when this is what was told, no more and no less."""
        for _ in range(2000):
            if len(self.link.told) >= len(told):
                break
            CLOCK.wait(NEVER, 0.01)
        assert self.link.told == list(told)

    def close(self) -> None:
        self.follower.close()
        self.books.close()


@pytest.fixture
def process(side: Side) -> Iterator[Process]:
    made = Process(side)
    yield made
    made.close()


def test_who_is_there_is_known_at_once_and_the_others_as_they_come(
    side: Side, desk, process: Process
) -> None:
    a = desk.site("s/a")
    process.start()
    assert process.link.told == [("joined", "s/a")]
    desk.site("s/b")
    a.leave()
    process.until(("joined", "s/a"), ("joined", "s/b"), ("left", "s/a"))


def test_registering_again_is_told_again(side: Side, desk, process: Process) -> None:
    """The node of a process that lost its activation is switched off by it."""
    a = desk.site("s/a")
    process.start()
    a.register()
    process.until(("joined", "s/a"), ("joined", "s/a"))


def test_a_restarted_coordinator_tells_only_what_is_new(side: Side, desk, process: Process) -> None:
    desk.site("s/a")
    process.start()
    side.restart()
    desk.site("s/b")
    process.until(("joined", "s/a"), ("joined", "s/b"))
    side.restart()
    desk.clock.advance(1000.0)
    desk.books.tick()
    process.until(("joined", "s/a"), ("joined", "s/b"), ("left", "s/a"), ("left", "s/b"))


def test_a_join_that_fails_is_logged_or_tried_again(
    side: Side, desk, process: Process, caplog
) -> None:
    process.start()
    process.link.faults = [Refused("its key was withdrawn", code="unauthorised")]
    desk.site("s/a")
    desk.site("s/b")
    process.until(("joined", "s/b"))
    assert "s/a cannot take part: its key was withdrawn" in caplog.text
    process.link.faults = [OSError("database is locked")]
    desk.site("s/c")
    process.until(("joined", "s/b"), ("joined", "s/c"))
    assert "a join or leave could not be obeyed; trying again" in caplog.text


def test_a_new_aggregator_is_told_of_all(side: Side, desk, process: Process) -> None:
    desk.site("s/a")
    process.start()
    process.close()
    other = Process(side).start()
    assert other.link.told == [("joined", "s/a")]
    other.close()


# ---------------------------------------------------------------------------- who waits for whom


def test_a_second_site_waits_for_an_aggregator(side: Side, desk, process: Process) -> None:
    desk.books._leasing._merges = lambda: side.feed.attached
    desk.site("s/a")
    desk.site("s/b")  # the same site's
    with pytest.raises(Refused, match=r"site t cannot join s yet: .*no aggregator") as refused:
        desk.site("t/a")
    assert (refused.value.code, refused.value.retry_after_s) == ("not_ready", 2.0)
    assert "t/a" not in {m["replica"] for m in desk.books.status()["members"]}
    process.start()
    other = desk.site("t/a")
    process.close()
    while side.feed.attached:
        CLOCK.wait(NEVER, 0.01)
    other.register()  # who has a seat keeps it
    desk.clock.advance(60.0)
    desk.site("t/a")
    with pytest.raises(Refused, match="site u cannot join s, t yet"):
        desk.site("u/a")


def test_the_answer_to_a_registration_waits_until_it_was_obeyed() -> None:
    feed = MemberFeed()
    feed.attach(True)
    sent: list[object] = []

    async def app(scope, receive, send) -> None:
        feed.joined(A)
        await send({"type": "http.response.start", "status": scope["status"]})
        await send({"type": "http.response.body", "body": b""})

    async def send(event) -> None:
        sent.append(event["type"])

    async def call(path: str, status: int = 200) -> None:
        scope = {"type": "http", "path": path, "status": status}
        await AdmittedFirst(app, feed)(scope, None, send)  # type: ignore[arg-type]

    async def joins() -> None:
        registration = asyncio.create_task(call("/v1/register"))
        await asyncio.sleep(0.1)
        assert sent == []
        feed.since(1, life=feed.life, wait_s=0)
        await registration
        assert len(sent) == 2
        feed.joined(B)
        await call("/v1/register", 409)  # a refusal is told at once
        await call("/v1/heartbeat")
        assert len(sent) == 6

    asyncio.run(joins())
