"""The lease table: each rule by name; every test ends with the laws checked."""

from collections.abc import Iterator
from typing import get_args

import pytest
from lease_driver import D, Driver, E

from pww.errors import LeaseError
from pww.lease.events import (
    Committed,
    Event,
    Granted,
    Pinned,
    Promised,
    Reason,
    Returned,
    Revived,
    Unpinned,
)
from pww.lease.held import Held
from pww.lease.table import LeaseTable
from pww.wire import Leased, Span


@pytest.fixture
def t() -> Iterator[Driver]:
    driver = Driver(LeaseTable(20, epoch_positions=10))
    yield driver
    driver.table.verify()


def test_lowest_first_and_disjoint(t: Driver) -> None:
    a, b = t.grant("s/a", 4), t.grant("s/b", 3)
    assert (a.span, b.span) == (Span(0, 4), Span(4, 7))
    assert a.watermark == 4
    t.do(t.table.decide_return([a.id], replica="s/a", reason="released"))
    assert t.grant("s/b", 10).span == Span(0, 4), "a fragment is granted whole and alone"


def test_a_grant_ends_with_its_epoch(t: Driver) -> None:
    t.grant("s/a", 8)
    assert t.grant("s/a", 8).span == Span(8, 10)
    assert t.grant("s/a", 8).span == Span(10, 18)


def test_nothing_free_is_no_grant(t: Driver) -> None:
    t.grant("s/a", 10)
    t.grant("s/a", 10)
    assert t.table.decide_grant("s/a", num_blocks=1, ttl_s=1.0) == ()
    assert not t.table.complete


def test_expiry_renewal_and_pins(t: Driver) -> None:
    expiring, renewed, pinned = t.grant("s/a", 2), t.grant("s/a", 2), t.grant("s/a", 2)
    t.pin(D, pinned)
    t.table.renew(renewed.id, ttl_s=10.0, now_s=5.0)
    assert t.table.decide_expiry(9.9) == ()
    assert t.do(t.table.decide_expiry(10.0)) == (Returned(expiring.id, "expired"),)
    assert t.table.remaining_s(renewed.id, 10.0) == 5.0
    assert t.table.decide_expiry(1e9) == (Returned(renewed.id, "expired"),), "a pin never expires"


def test_a_late_renewal_does_not_shorten(t: Driver) -> None:
    held = t.grant("s/a", 1, ttl_s=100.0)
    t.table.renew(held.id, ttl_s=1.0, now_s=0.0)
    assert t.table.remaining_s(held.id, 0.0) == 100.0


def test_an_expired_lease_comes_back_until_somebody_got_its_blocks(t: Driver) -> None:
    first, second = t.grant("s/a", 3), t.grant("s/a", 3)
    t.do(t.table.decide_expiry(10.0))
    t.grant("s/b", 1, now_s=10.0)  # takes position 0, a part of the first
    revived = t.table.decide_revive([first.id, second.id], replica="s/a", ttl_s=7.0)
    assert revived == (Revived(second.id, 7.0),)
    assert t.table.decide_revive([second.id], replica="s/b", ttl_s=7.0) == ()
    t.do(revived, 20.0)
    assert t.table.find(second.id, replica="s/a") == second
    assert t.table.remaining_s(second.id, 20.0) == 7.0


@pytest.mark.parametrize("reason", get_args(Reason))
def test_only_an_expired_lease_comes_back(t: Driver, reason: Reason) -> None:
    held = t.grant("s/a", 3, ahead=True)
    t.do(t.table.decide_return([held.id], replica="s/a", reason=reason))
    back = t.table.decide_revive([held.id], replica="s/a", ttl_s=1.0)
    assert back == ((Revived(held.id, 1.0),) if reason == "expired" else ())


def test_only_its_replica_returns_a_lease_and_never_a_pinned_one(t: Driver) -> None:
    free, pinned = t.grant("s/a", 1), t.grant("s/a", 1)
    t.pin(D, pinned)
    both = [free.id, pinned.id, 99, free.id]
    assert t.table.decide_return(both, replica="s/b", reason="released") == ()
    assert t.table.decide_return(both, replica="s/a", reason="left") == (Returned(free.id, "left"),)


def test_commit_counts_for_the_holder(t: Driver) -> None:
    a, b = t.grant("s/a", 4), t.grant("s/a", 2)
    t.pin(D, a, b)
    assert t.do(t.table.decide_commit(D)) == (
        Committed(a.id, D, "s/a", 0, 4),
        Committed(b.id, D, "s/a", 4, 6),
    )
    assert t.table.committed_by == {"s/a": 6}
    assert list(t.table.committed) == [Span(0, 6)]
    assert t.table.decide_commit(D) == ()


def test_reject_returns_what_is_not_kept(t: Driver) -> None:
    a, b = t.grant("s/a", 1), t.grant("s/a", 1)
    t.pin(D, a, b)
    assert t.do(t.table.decide_reject(D, keep=[b.id])) == (
        Returned(a.id, "rejected"),
        Unpinned(b.id),
    )
    t.pin(E, b)
    assert t.table.decide_reject(D) == ()


def test_an_expired_lease_is_pinned_by_its_delta(t: Driver) -> None:
    held = t.grant("s/a", 3)
    t.do(t.table.decide_expiry(10.0))
    assert t.pin(D, held) == (Revived(held.id, 10.0), Pinned(held.id, D))


@pytest.mark.parametrize(
    ("lease", "span", "replica", "text"),
    [
        (1, Span(0, 4), "s/b", "lease 1 is not s/b's"),
        (9, Span(0, 4), "s/a", "lease 9 is not s/a's"),
        (1, Span(0, 3), "s/a", r"lease 1 holds \[0, 4\), the delta names \[0, 3\)"),
        (2, Span(4, 5), "s/a", f"lease 2 belongs to delta {E}, which has no verdict yet"),
    ],
)
def test_a_delta_names_what_is_its_own(
    t: Driver, lease: int, span: Span, replica: str, text: str
) -> None:
    t.grant("s/a", 4)
    t.pin(E, t.grant("s/a", 1))
    with pytest.raises(LeaseError, match=text):
        t.table.decide_pin(D, replica=replica, spans=[Leased(lease=lease, span=span)], ttl_s=1.0)


def test_a_lease_is_named_once(t: Driver) -> None:
    leased = Leased(lease=1, span=t.grant("s/a", 4).span)
    with pytest.raises(LeaseError, match="a lease is named twice"):
        t.table.decide_pin(D, replica="s/a", spans=[leased, leased], ttl_s=1.0)


def test_a_renewal_beyond_what_was_promised_is_an_event_first(t: Driver) -> None:
    held = t.grant("s/a", 1, ttl_s=10.0)
    assert t.table.decide_promise(held.id, ttl_s=10.0) == ()
    with pytest.raises(LeaseError, match="lease 1 is promised 10 s, not 20 s; make the promise"):
        t.table.renew(held.id, ttl_s=20.0, now_s=0.0)
    assert t.do(t.table.decide_promise(held.id, ttl_s=20.0)) == (Promised(held.id, 25.0),)
    assert t.table.remaining_s(held.id, 0.0) == 10.0, "a promise renews nothing by itself"
    t.table.renew(held.id, ttl_s=20.0, now_s=0.0)
    assert t.table.remaining_s(held.id, 0.0) == 20.0
    assert t.table.decide_promise(held.id, ttl_s=25.0) == ()


def test_after_a_restart_every_lease_has_what_it_was_promised_or_the_grace(t: Driver) -> None:
    short, long, renewed = (t.grant("s/a", 1, ttl_s=s) for s in (1.0, 1000.0, 10.0))
    revived = t.grant("s/a", 1, ttl_s=2.0)
    t.do((Returned(revived.id, "expired"), Revived(revived.id, 70.0)))
    t.do(t.table.decide_promise(renewed.id, ttl_s=100.0))
    again = Driver(LeaseTable(20, epoch_positions=10))
    again.do(tuple(t.journal), 50.0)
    again.table.restore(now_s=50.0, grace_s=60.0)
    left_s = [again.table.remaining_s(h.id, 50.0) for h in (short, long, renewed, revived)]
    assert left_s == [60.0, 1000.0, 125.0, 70.0]


@pytest.mark.parametrize(
    "event",
    [
        Granted(1, "s/a", 5, 6, 6, 1.0),  # id used before
        Granted(9, "s/a", 1, 5, 5, 1.0),  # overlaps a lease
        Revived(1, 1.0),
        Promised(7, 1.0),
        Pinned(7, D),
        Pinned(2, E),  # pinned already
        Returned(7, "expired"),
        Unpinned(7),
        Committed(1, D, "s/a", 0, 2),  # not pinned
        Committed(2, D, "s/b", 2, 3),  # another replica
        Committed(2, D, "s/a", 2, 4),  # another span
        Committed(2, E, "s/a", 2, 3),  # another delta
    ],
)
def test_an_event_that_does_not_follow_is_damage(t: Driver, event: Event) -> None:
    t.grant("s/a", 2)
    t.pin(D, t.grant("s/a", 1))
    with pytest.raises(LeaseError, match="does not follow from the table's state"):
        t.table.apply(event, 0.0)


def test_verify_sees_each_law_broken() -> None:
    def broken() -> LeaseTable:
        driver = Driver(LeaseTable(10, epoch_positions=10))
        driver.pin(D, driver.grant("s/a", 2))
        driver.grant("s/a", 2)
        driver.do(driver.table.decide_commit(D))
        return driver.table

    table = broken()
    table.unassigned.add(2, 3)
    with pytest.raises(
        LeaseError, match="disjointness: position 2 is in unassigned and in lease 2"
    ):
        table.verify()
    table = broken()
    table.unassigned.remove(5, 6)
    with pytest.raises(LeaseError, match=r"completeness: \[5, 6\) is in no state"):
        table.verify()
    table = broken()
    table.unassigned.remove(9, 10)
    with pytest.raises(LeaseError, match="completeness: states end at 9 of 10"):
        table.verify()
    table = broken()
    table.committed_by["s/a"] += 1
    with pytest.raises(LeaseError, match="accounting: replicas committed 3, the table 2"):
        table.verify()
    table = broken()
    table._leased += 1
    with pytest.raises(LeaseError, match="accounting: leases hold 2, the table counts 3"):
        table.verify()
    table = broken()
    table.attempts.change(1, 3, by=1)
    with pytest.raises(LeaseError, match=r"attempts: \[1, 3\) is counted though it is committed"):
        table.verify()
    table = broken()
    table.unassigned.remove(5, 6)
    table.quarantined.add(5, 6)
    table.verify()
    table.quarantined.add(3, 4)
    with pytest.raises(LeaseError, match="position 3 is in lease 2 and in quarantined"):
        table.verify()


@pytest.mark.parametrize(
    ("lease", "text"),
    [
        (Held(2, "s/a", 2, 4, 5), "authority: Held.*has a watermark outside"),
        (Held(2, "s/a", 2, 4, 1), "authority: Held.*has a watermark outside"),
        (Held(2, "s/a", 2, 4, 3, D), "authority: Held.*or a delta too early"),
        (Held(7, "s/a", 2, 4, 4), "accounting: Held.* exists, the next lease is 3"),
    ],
)
def test_verify_sees_a_lease_that_cannot_be(lease: Held, text: str) -> None:
    driver = Driver(LeaseTable(10, epoch_positions=5))
    driver.grant("s/a", 2)
    driver.grant("s/a", 2)
    driver.table._leases[2] = lease
    with pytest.raises(LeaseError, match=text):
        driver.table.verify()


def test_verify_sees_a_lease_over_two_epochs(t: Driver) -> None:
    t.table.apply(Granted(1, "s/a", 8, 12, 12, 1.0), 0.0)
    with pytest.raises(LeaseError, match=r"epochs: Held.* straddles two of 10 positions"):
        t.table.verify()
    t.table.apply(Returned(1, "released"), 0.0)


def test_verify_sees_a_memory_of_what_somebody_else_got(t: Driver) -> None:
    held = t.grant("s/a", 4)
    t.table._lapsed.add(held)
    with pytest.raises(LeaseError, match=r"lapsed: Held.* is remembered though somebody got of it"):
        t.table.verify()
    t.table._lapsed.forget(0, 4)


def test_expiry_is_looked_for_again_after_a_pin_ends(t: Driver) -> None:
    pinned, other = t.grant("s/a", 1, ttl_s=5.0), t.grant("s/a", 1, ttl_s=90.0)
    t.pin(D, pinned)
    assert t.table.decide_expiry(50.0) == ()
    t.do(t.table.decide_reject(D, keep=[pinned.id]))
    assert t.do(t.table.decide_expiry(50.0)) == (Returned(pinned.id, "expired"),)
    assert t.do(t.table.decide_expiry(90.0)) == (Returned(other.id, "expired"),)


def test_a_delta_commits_in_order_of_leases_whatever_order_it_names(t: Driver) -> None:
    a, b = t.grant("s/a", 1), t.grant("s/a", 1)
    t.pin(D, b, a)
    assert [event.lease for event in t.table.decide_commit(D)] == [a.id, b.id]  # type: ignore[union-attr]


def test_size_follows_leases_not_positions() -> None:
    driver = Driver(LeaseTable(4 * 10**9, epoch_positions=10**9))
    for i in range(100):
        held = driver.grant("s/a", 10**6)
        driver.pin(f"{i:032x}", held)
        driver.do(driver.table.decide_commit(f"{i:032x}"))
    assert len(driver.table.committed) == len(driver.table.unassigned) == 1
    assert driver.table.committed.total == 10**8
