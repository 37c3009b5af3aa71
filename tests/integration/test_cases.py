"""Cases from public reports of systems like ours, each under its name: leases that lapse, replies
that get lost, restarts, clocks.

The real coordinator over real HTTP and a real ledger, spoken to by the real client; only the
central's clock is the test's. Deltas are handed to the books, as the aggregator does it.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pww.central.audit import Audit
from pww.clock import SystemClock
from pww.errors import Refused
from pww.lease.space import BlockSpace
from pww.replica.port import Claims
from pww.replica.session import Session
from pww.wire import Exhausted, Span

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from lease_desk import DARL, MODEL, Central, Site


@pytest.fixture
def central(tmp_path: Path) -> Iterator[Central]:
    made = Central(tmp_path)
    yield made
    made.audited()
    made.close()


def shares(told: Audit) -> dict[str, int]:
    return {share.replica: share.blocks for share in told.shares}


def test_a_lapses_b_gets_it_a_completes_late_then_b_completes(central: Central) -> None:
    a = Site(central, "s/a")
    lease = a.acquire(5)
    central.lapse()
    b = Site(central, "s/b")
    again = b.acquire(5)
    assert again.span == lease.span
    late = a.complete(lease)
    assert late is not None
    assert late.outcome == "rejected"
    assert f"lease {lease.id}" in late.reason, "A is told that it is stale"
    assert not a.renew(lease)
    assert b.complete(again) is None
    central.merge(b.prev)
    told = central.audited()
    assert (told.exactly_once, told.unleased, shares(told)) == (5, 15, {"s/b": 5})


def test_a_lapses_b_gets_it_a_completes_late_and_b_never_does(central: Central) -> None:
    a = Site(central, "s/a")
    lease = a.acquire(5)
    central.lapse()
    b = Site(central, "s/b")
    assert b.acquire(5).span == lease.span
    late = a.complete(lease)
    assert late is not None
    assert late.outcome == "rejected"
    central.lapse()  # B was never heard of again
    c = Site(central, "s/c")
    third = c.acquire(5)
    assert third.span == lease.span
    assert c.complete(third) is None
    central.merge(c.prev)
    told = central.audited()
    assert (told.exactly_once, told.unleased, shares(told)) == (5, 15, {"s/c": 5})


def test_a_lapses_and_completes_before_anybody_got_it(central: Central) -> None:
    a = Site(central, "s/a")
    lease = a.acquire(5)
    central.lapse()
    assert a.complete(lease) is None, "expired, not regranted: it is still his"
    b = Site(central, "s/b")
    assert b.acquire(5).span == Span(5, 10), "receipt pins it"
    central.merge(a.prev)
    assert shares(central.audited()) == {"s/a": 5}


def test_the_reply_to_acquire_is_lost(central: Central) -> None:
    a = Site(central, "s/a")
    central.http.lose = 1
    first = a.acquire(3)
    assert a.http.num_retries >= 1
    assert first.span == Span(0, 3)
    assert a.acquire(3).span == Span(3, 6), "one lease was granted, not two"
    assert central.audited().leased == 6


def test_replies_are_lost_and_the_coordinator_is_killed_between(central: Central) -> None:
    a = Site(central, "s/a")
    key = central.token()
    lease = a.acquire(3, key=key)  # its reply is lost, say …
    central.restart()
    assert a.acquire(3, key=key) == lease, "… and the request repeated to the next process"
    offer = a.offer(lease)
    assert central.books.receive(offer) is None
    central.restart()
    assert central.books.receive(offer) is None, "booked, and booked once"
    assert len(central.books.staged()) == 1
    central.merge(offer.delta)
    central.restart()
    verdict = central.books.receive(offer)
    assert verdict is not None
    assert (verdict.outcome, verdict.round) == ("merged", 1)
    told = central.audited()
    assert (told.exactly_once, told.leased, told.merges) == (3, 0, 1)


def test_restarted_with_an_empty_database_sites_stop_and_say_why(central: Central) -> None:
    session = session_of(central, "s/a", clock=SystemClock())
    session.register()
    lease = session.acquire(3)
    assert lease is not None
    run = session.run
    central.restart(empty=True)
    session.beat()
    with pytest.raises(Refused, match=r"register|start it again"):
        session.acquire(3)
    with pytest.raises(Refused) as why:
        session.reregister()
    assert why.value.code == "wrong_run"
    assert run in str(why.value)
    assert central.books.run in str(why.value)
    # a new process that goes on with its checkpoint is refused as well
    with pytest.raises(Refused) as why:
        Site(central, "s/a", run=run, last_round=0, leases=(lease.id,))
    assert why.value.code == "wrong_run"
    told = central.audited()
    assert (told.leased, told.unleased, told.exactly_once) == (0, 20, 0), "no orphan, no count"
    session.leave()


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Central]:
    """192 blocks, in real time."""
    space = BlockSpace(
        num_windows=32 * 6 * 4, block_windows=4, seed=1, epochs=1, window_tokens=9,
        corpus="c" * 64,
    )  # fmt: skip
    # no caller is too late, however long it does not get a core while others merge
    made = Central(tmp_path, space=space, clock=SystemClock(), staleness_window=192)
    yield made
    made.close()


def test_32_callers_acquire_renew_and_commit_at_once(busy: Central) -> None:
    central = busy
    sites = [Site(central, f"s/{i}") for i in range(32)]
    faults: list[BaseException] = []
    done, merging = threading.Event(), threading.Lock()

    def work(site: Site) -> None:
        try:
            for _ in range(6):
                lease = site.acquire(1)
                assert site.renew(lease)
                verdict = site.complete(lease)
                assert verdict is None, verdict
        except BaseException as why:
            faults.append(why)

    def merge_on() -> None:
        try:
            while not done.wait(0.01):
                with merging:
                    staged = [one.offer.delta for one in central.books.staged()]
                    if staged:
                        central.merge(*staged)
        except BaseException as why:
            faults.append(why)

    threads = [threading.Thread(target=work, args=(site,)) for site in sites]
    merger = threading.Thread(target=merge_on)
    for thread in (*threads, merger):
        thread.start()
    for thread in threads:
        thread.join(120)
    done.set()
    merger.join(30)
    assert not faults, faults
    staged = [one.offer.delta for one in central.books.staged()]
    if staged:
        central.merge(*staged)
    assert set(central.http.statuses) == {200}, "no 5xx"
    assert sum(site.http.num_retries for site in sites) == 0
    told = central.audited()
    assert (told.blocks, told.exactly_once) == (192, 192)
    assert shares(told) == {f"s/{i}": 6 for i in range(32)}
    assert isinstance(sites[0].ask(1), Exhausted)


class OffClock(SystemClock):
    """A machine whose clocks, both of them, are off."""

    def __init__(self, off_s: float) -> None:
        self._off_s = off_s

    def monotonic(self) -> float:
        return super().monotonic() + 1e6 + self._off_s

    def wall(self) -> float:
        return super().wall() + self._off_s


def session_of(central: Central, replica: str, *, clock: Any) -> Session:
    """A session whose heartbeats are sent by hand."""
    return Session(
        central.client(clock), replica=replica, node_key="", space=central.space, model=MODEL,
        darl=DARL, clock=clock, stop=threading.Event(), versions={}, claims=Claims(),
        spawn=lambda work: threading.Thread(target=work),
    )  # fmt: skip


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_site_clocks_are_off_by_300_s_and_the_centrals_is_stepped_by_an_hour(
    central: Central, step_s: float
) -> None:
    sessions = [
        session_of(central, f"s/{i}", clock=OffClock(off_s))
        for i, off_s in enumerate((-300.0, 0.0, 300.0))
    ]
    for session in sessions:
        session.register()
    leases = [session.acquire(3) for session in sessions]
    held = [lease for lease in leases if lease is not None]
    assert [lease.span for lease in held] == [Span(0, 3), Span(3, 6), Span(6, 9)]
    central.clock.jump_wall(step_s)
    central.books.tick()
    assert central.audited().leased == 9, "no mass expiry"
    for session, lease in zip(sessions, held, strict=True):
        session.beat()
        assert session.standing(lease.id) == "draw"
    stranger = Site(central, "s/z")
    assert stranger.acquire(20).span == Span(9, 20), "no double holder"
    # what ends a lease is silence, by the central's monotonic clock
    central.clock.advance(29.0)
    central.books.tick()
    assert central.audited().leased == 20
    sessions[0].beat()
    central.clock.advance(2.0)
    central.books.tick()
    assert central.audited().leased == 3
    for session in sessions:
        session.leave()


def test_a_duplicate_reply_for_a_round_merges_once(central: Central) -> None:
    a = Site(central, "s/a")
    offer = a.offer(a.acquire(4))
    copies = [central.books.receive(offer) for _ in range(3)]
    assert copies == [None, None, None]
    assert len(central.books.staged()) == 1
    central.merge(offer.delta)
    copies = [central.books.receive(offer) for _ in range(2)]
    assert [(v.outcome, v.round) for v in copies if v is not None] == [("merged", 1)] * 2
    assert central.books.staged() == ()
    # under another id it is another delta, and its blocks are in already
    twin = central.books.receive(offer.model_copy(update={"delta": "f" * 32, "prev": offer.delta}))
    assert twin is not None
    assert twin.outcome == "rejected"
    told = central.audited()
    assert (told.exactly_once, told.merges, shares(told)) == (4, 1, {"s/a": 4})


def test_a_delta_for_a_run_that_was_replaced_is_refused(central: Central) -> None:
    a = Site(central, "s/a")
    lease = a.acquire(4)
    offer = a.offer(lease)
    central.restart(empty=True)
    anew = Site(central, "s/a")
    assert anew.acquire(4).span == lease.span, "the same blocks, of another run"
    for incarnation in (a.incarnation, anew.incarnation):
        verdict = central.books.receive(offer.model_copy(update={"incarnation": incarnation}))
        assert verdict is not None
        assert verdict.outcome == "rejected"
        assert offer.run in verdict.reason
        assert central.books.run in verdict.reason
    assert central.books.staged() == ()
    told = central.audited()
    assert (told.exactly_once, told.leased) == (0, 4)
