"""The books by socket are the books: every answer, every fault, through lost calls and restarts."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "programs"))

from books_relay import Fate, Relay

from pww.central import books_line, books_server
from pww.central.books_server import BooksServer
from pww.central.books_wire import Follow
from pww.central.member_feed import MemberFeed
from pww.central.remote_books import NEWS, RemoteBooks
from pww.clock import SystemClock
from pww.errors import InUse, LeaseError, PwwError, Refused, StateError, Stopped
from pww.wire import PhaseMetrics

CLOCK = SystemClock()


class Side:
    """A desk behind its socket; `restart` is a new process of the coordinator."""

    def __init__(self, desk, folder: Path) -> None:
        self.desk, self.path = desk, folder / "books" / "socket"
        self.stop = threading.Event()
        self._made: list[RemoteBooks] = []
        self.start()

    def start(self) -> None:
        self.feed = MemberFeed()
        self.server = BooksServer(self.desk.books, self.feed, path=self.path, clock=CLOCK)
        self.server.start()

    def restart(self) -> None:
        self.server.close()
        self.desk.restart()
        self.start()

    def books(self, path: Path | None = None, **options) -> RemoteBooks:
        made = RemoteBooks(
            path or self.path, name="outputs/run", clock=CLOCK, stop=self.stop,
            random=np.random.default_rng(0), **options,
        )  # fmt: skip
        self._made.append(made)
        return made

    def close(self) -> None:
        self.stop.set()
        for each in self._made:
            each.close()
        self.server.close()


@pytest.fixture
def side(desk, tmp_path: Path) -> Iterator[Side]:
    made = Side(desk, tmp_path)
    yield made
    made.close()


@pytest.fixture
def relay(side: Side, tmp_path: Path) -> Iterator[Callable[[Callable[[str, int], Fate]], Relay]]:
    made: list[Relay] = []

    def make(fate: Callable[[str, int], Fate]) -> Relay:
        made.append(Relay(tmp_path / f"relay-{len(made)}", side.path, fate))
        return made[-1]

    yield make
    side.stop.set()
    for each in made:
        each.close()


def same(remote: RemoteBooks, books) -> None:
    """All that can be asked, asked on both sides."""
    for name in ("run", "model", "round", "generation", "state_hash", "committed_windows"):
        assert getattr(remote, name) == getattr(books, name), name
    for name in ("report", "reports", "staged", "expected", "live", "silent", "exhausted",
                 "status", "unsent"):  # fmt: skip
        assert getattr(remote, name)() == getattr(books, name)(), name
    assert remote.reports(after=1) == books.reports(after=1)
    assert remote.verdicts("s/a") == books.verdicts("s/a")
    for number in range(books.round + 1):
        assert remote.tokens_total(number) == books.tokens_total(number)


def life(site, other, remote: RemoteBooks, check: Callable[[], None]) -> None:
    """Deltas that are merged, rejected and undecided, all told to `remote`."""
    residual = PhaseMetrics(
        steps=1, tokens=96, loss=1.0, phase_seconds=1.0, tokens_per_s=1.0, residual_norm=0.25,
        delta_norm=1.0,
    )  # fmt: skip
    for number in (1, 2):
        lease = site.acquire(3)
        offer = site.offer(lease, metrics=residual)
        assert remote.receive(offer) is None
        check()
        remote.close_round(
            merged=[offer.delta], generation=f"round-{number:06d}", state_hash=f"{number:064x}",
            report=site.desk.report(site.replica),
        )  # fmt: skip
        site.prev = offer.delta
        check()
    bad = other.offer(other.acquire(2))
    assert remote.receive(bad) is None
    verdict = remote.reject(bad.delta, "it is not wanted")
    assert (verdict.outcome, verdict.reason) == ("rejected", "it is not wanted")
    late = other.offer(other.acquire(2), base_round=0, tokens=0)
    told = remote.receive(late)
    assert told is not None
    assert told.reason == "it was computed from no tokens"
    assert remote.receive(site.offer(site.acquire(1))) is None
    site.acquire(1)
    check()


def test_every_answer_is_the_books_own(side: Side, desk) -> None:
    remote = side.books()
    same(remote, desk.books)
    assert remote.model == ""
    site, other = desk.site("s/a"), desk.site("t/b")
    assert remote.model == desk.books.model != ""
    life(site, other, remote, lambda: same(remote, desk.books))
    assert len(desk.books.unsent()) == 1
    desk.clock.advance(11.0)
    desk.books.tick()
    assert len(remote.silent()) == 2
    same(remote, desk.books)
    remote.tick()
    same(remote, desk.books)


def test_theta0_is_published_once(side: Side, make_desk, tmp_path: Path) -> None:
    fresh = Side(make_desk(seeded=False), tmp_path / "fresh")
    try:
        remote = fresh.books()
        assert (remote.generation, remote.state_hash) == ("", "")
        for _ in range(2):
            remote.seed(generation="round-000000", state_hash="5" * 64)
            assert (remote.generation, remote.state_hash) == ("round-000000", "5" * 64)
        with pytest.raises(LeaseError, match=r"theta\(0\) is 5555.* already, not 6666"):
            remote.seed(generation="round-000000", state_hash="6" * 64)
    finally:
        fresh.close()


@pytest.mark.parametrize("fate", ["lose the call", "lose the answer"])
def test_each_call_may_be_lost_the_first_time(side: Side, desk, relay, fate: Fate) -> None:
    """The same run with every first try of every call lost: the books end the same."""
    wire = relay(lambda name, before: fate if before == 0 and name != "attach" else "pass")
    remote = side.books(wire.path)
    site, other = desk.site("s/a"), desk.site("t/b")
    life(site, other, remote, lambda: same(remote, desk.books))
    assert {"receive", "reject", "close_round", "head", "staged"} <= set(wire.lost)
    assert (desk.books.round, len(desk.books.reports())) == (2, 2)
    assert [v.outcome for v in desk.books.verdicts("s/a")] == ["merged", "merged"]
    assert desk.coverage() == (6, 2, 12)


def test_a_round_whose_answer_is_lost_in_a_restart_is_closed_once(side: Side, desk, relay) -> None:
    def fate(name: str, before: int) -> Fate:
        if name == "close_round" and before == 0:
            restarted.set()
            return "lose the answer"
        return "pass"

    restarted = threading.Event()
    remote = side.books(relay(fate).path)
    site = desk.site("s/a")
    offer = site.offer(site.acquire(3))
    assert remote.receive(offer) is None
    closing = threading.Thread(
        target=remote.close_round,
        kwargs={
            "merged": [offer.delta], "generation": "round-000001", "state_hash": f"{1:064x}",
            "report": desk.report("s/a"),
        },
    )  # fmt: skip
    closing.start()
    assert restarted.wait(20)
    side.restart()
    closing.join(20)
    assert not closing.is_alive()
    assert (remote.round, desk.books.round) == (1, 1)
    assert len(desk.books.reports()) == 1


def test_another_round_of_that_number_is_not_taken_for_it(side: Side, desk) -> None:
    remote = side.books()
    site = desk.site("s/a")
    offer = site.offer(site.acquire(3))
    assert remote.receive(offer) is None
    told = {
        "merged": [offer.delta], "generation": "round-000001", "state_hash": f"{1:064x}",
        "report": desk.report("s/a"),
    }  # fmt: skip
    for _ in range(2):
        remote.close_round(**told)
    for change in ({"state_hash": f"{2:064x}"}, {"generation": "round-000002"},
                   {"report": told["report"].model_copy(update={"loss": 9.0})}):  # fmt: skip
        with pytest.raises(LeaseError, match="the report is of round 1, the next round is 2"):
            remote.close_round(**told | change)
    assert desk.books.round == 1


def test_the_faults_of_the_books_come_as_they_are(side: Side, desk, monkeypatch, caplog) -> None:
    remote = side.books()
    site = desk.site("s/a")
    offer = site.offer(site.acquire(3))
    assert remote.receive(offer) is None
    with pytest.raises(Refused, match="was received before with other content") as refused:
        remote.receive(offer.model_copy(update={"partial": True}))
    assert refused.value.code == "bad_request"
    with pytest.raises(LeaseError, match="is unknown; only a pending one can be rejected"):
        remote.reject("e" * 32, "x")
    for kind in (StateError, InUse, PwwError):
        monkeypatch.setattr(desk.books, "live", raising(kind("the disk is full")))
        with pytest.raises(kind, match="the disk is full") as fault:
            remote.live()
        assert type(fault.value) is kind
    monkeypatch.setattr(desk.books, "live", raising(Stopped("x")))
    with pytest.raises(PwwError, match="x"):
        remote.live()
    monkeypatch.setattr(desk.books, "live", raising(ZeroDivisionError()))
    with pytest.raises(StateError, match=r"ask failed \(ZeroDivisionError\); see the coordinator"):
        remote.live()
    assert "ZeroDivisionError" in caplog.text
    assert remote.exhausted() is False


def raising(fault: Exception) -> Callable[[], None]:
    def raises() -> None:
        raise fault

    return raises


def test_an_absent_coordinator_is_waited_for_and_named(side: Side, desk, caplog) -> None:
    side.server.close()
    remote = side.books()
    caplog.set_level(logging.INFO, "pww.transport.retry")
    asking = threading.Thread(target=remote.attach)
    asking.start()
    while "no coordinator runs on this run folder" not in caplog.text:
        CLOCK.wait(side.stop, 0.01)
    assert "the coordinator of outputs/run: no answer to head" in caplog.text
    assert "central.roles=[coordinator]" in caplog.text
    side.start()
    asking.join(20)
    assert not asking.is_alive()
    assert "works again" in caplog.text


def test_a_stop_ends_the_wait(side: Side) -> None:
    side.server.close()
    remote = side.books()
    side.stop.set()
    with pytest.raises(Stopped, match="stopped while the coordinator of outputs/run did not"):
        remote.attach()


def test_who_waits_is_told_when_waiting_is_useless(side: Side) -> None:
    side.server.close()
    remote = side.books(absent=raising(StateError("the run is complete")))
    with pytest.raises(StateError, match="the run is complete"):
        remote.attach()


def test_a_restarted_coordinator_is_met_and_followed(side: Side, desk) -> None:
    met: list[int] = []
    remote = side.books(met=lambda: met.append(1))
    site = desk.site("s/a")
    assert (remote.round, len(met)) == (0, 1)
    offer = site.offer(site.acquire(2))
    assert remote.receive(offer) is None
    side.restart()
    assert [staged.offer for staged in remote.staged()] == [offer]
    assert len(met) == 2
    same(remote, desk.books)


def test_a_coordinator_of_another_run_or_an_older_copy_is_not_followed(
    side: Side, desk, make_desk
) -> None:
    remote = side.books()
    site = desk.site("s/a")
    offer = site.offer(site.acquire(2))
    assert remote.receive(offer) is None
    remote.close_round(
        merged=[offer.delta], generation="round-000001", state_hash=f"{1:064x}",
        report=desk.report("s/a"),
    )  # fmt: skip
    real = desk.books.run
    other = make_desk("other")
    other.books._state.run = "f" * 32
    side.server.close()
    side.desk = other
    side.start()
    with pytest.raises(StateError, match=f"serves run {'f' * 32} now, this .* run {real}"):
        remote.live()
    other.books._state.run = real
    with pytest.raises(StateError, match=r"is at round 0 of run .*, it had confirmed round 1"):
        remote.live()


def test_one_aggregator_at_a_time(side: Side, desk, caplog) -> None:
    caplog.set_level(logging.INFO, "pww.central.books_server")
    first = side.books()
    first.attach()
    assert side.feed.attached
    second = side.books()
    waiting = threading.Thread(target=second.attach)
    waiting.start()
    while "another aggregator is attached to these books" not in caplog.text:
        CLOCK.wait(side.stop, 0.01)
    first.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert caplog.text.count("an aggregator is attached") == 2
    second.close()
    while side.feed.attached:
        CLOCK.wait(side.stop, 0.01)


def test_two_lines_of_one_process_are_one_aggregator(side: Side) -> None:
    remote = side.books()
    remote.attach()
    line = remote.line(side.stop)
    line.once(Follow(life="", seen=0), NEWS)
    remote.close()
    CLOCK.wait(side.stop, 0.1)
    assert side.feed.attached
    line.close()


def test_another_version_is_refused(side: Side, monkeypatch) -> None:
    monkeypatch.setattr(books_line, "__version__", "0.0.0-other")
    with pytest.raises(StateError, match=r"the aggregator is pww 0\.0\.0-other, its coordinator"):
        side.books().attach()


def test_an_answer_of_another_shape_says_so(side: Side, desk, monkeypatch) -> None:
    remote = side.books()
    remote.attach()
    monkeypatch.setattr(desk.books, "exhausted", lambda: "perhaps")
    with pytest.raises(StateError, match=r"answer to ask cannot be read .*one installation of pww"):
        remote.exhausted()


def test_a_call_that_is_too_large_is_its_members_fault(side: Side, desk, monkeypatch) -> None:
    remote = side.books()
    remote.attach()
    site = desk.site("s/a")
    offer = site.offer(site.acquire(1))
    monkeypatch.setattr(books_line, "MAX_BYTES", 200)
    with pytest.raises(Refused, match=r"receive has [0-9]+ bytes, more than 200") as refused:
        remote.receive(offer)
    assert refused.value.code == "too_large"


def test_a_coordinator_that_hangs_is_asked_again(side: Side, desk, monkeypatch) -> None:
    """The first call is under way all the time; the second waits for it and does it once."""
    remote = side.books()
    site = desk.site("s/a")
    remote.attach()
    monkeypatch.setattr(books_line, "ANSWER_S", 0.3)
    slow, real = threading.Event(), desk.books.receive
    calls: list[int] = []

    def receive(offer):
        calls.append(1)
        slow.wait(20) if len(calls) == 1 else slow.set()
        return real(offer)

    monkeypatch.setattr(desk.books, "receive", receive)
    threading.Timer(1.0, slow.set).start()
    assert remote.receive(site.offer(site.acquire(1))) is None
    assert len(desk.books.staged()) == 1
    assert len(calls) >= 2


def test_the_limits_fit_together() -> None:
    assert books_server.NEWS_S < books_line.ANSWER_S
