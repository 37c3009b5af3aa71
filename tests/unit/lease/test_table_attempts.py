"""Attempts and quarantine: what counts as one, what does not, and what becomes of the worn."""

from collections.abc import Iterator
from typing import get_args

import pytest
from lease_driver import D, Driver

from pww.errors import LeaseError
from pww.lease.events import Granted, Quarantined, Raised, Reason, Revived
from pww.lease.table import LeaseTable
from pww.wire import Span


@pytest.fixture
def t() -> Iterator[Driver]:
    driver = Driver(LeaseTable(20, epoch_positions=10, max_attempts=2))
    yield driver
    driver.table.verify()


def expire(t: Driver, blocks: int, times: int = 1) -> None:
    for _ in range(times):
        t.grant("s/a", blocks, ttl_s=1.0)
        t.do(t.table.decide_expiry(1e9))


@pytest.mark.parametrize("reason", get_args(Reason))
def test_only_what_was_reclaimed_after_work_may_have_begun_is_an_attempt(
    t: Driver, reason: Reason
) -> None:
    begun, ahead = t.grant("s/a", 3), t.grant("s/a", 3, ahead=True)
    leases = [ahead.id] if reason == "stolen" else [begun.id, ahead.id]
    t.do(t.table.decide_return(leases, replica="s/a", reason=reason))
    counted = reason in ("expired", "taken over")
    assert list(t.table.attempts) == ([(0, 3, 1)] if counted else [])


def test_only_the_part_below_the_watermark_counts(t: Driver) -> None:
    ahead = t.grant("s/a", 6, ahead=True)
    t.do((Raised(ahead.id, 2),))
    t.do(t.table.decide_expiry(10.0))
    assert list(t.table.attempts) == [(0, 2, 1)]
    t.do(t.table.decide_revive([ahead.id], replica="s/a", ttl_s=1.0))
    assert not t.table.attempts


def test_a_rejected_delta_is_no_attempt(t: Driver) -> None:
    t.pin(D, t.grant("s/a", 3))
    t.do(t.table.decide_reject(D))
    assert not t.table.attempts


def test_a_revival_takes_its_attempt_back(t: Driver) -> None:
    held = t.grant("s/a", 3)
    t.do(t.table.decide_expiry(10.0))
    assert list(t.table.attempts) == [(0, 3, 1)]
    t.do(t.table.decide_revive([held.id], replica="s/a", ttl_s=1.0))
    assert not t.table.attempts
    t.do(t.table.decide_expiry(20.0))
    assert t.pin(D, held)[0] == Revived(held.id, 10.0)
    assert not t.table.attempts, "a delta revives like a heartbeat"


def test_a_commit_forgets_attempts(t: Driver) -> None:
    expire(t, 6)
    t.commit(D, t.grant("s/a", 4))
    assert list(t.table.attempts) == [(4, 6, 1)]


def test_worn_positions_in_the_way_are_set_aside_first(t: Driver) -> None:
    expire(t, 3, times=2)
    events = t.table.decide_grant("s/b", num_blocks=4, ttl_s=1.0)
    assert events == (Quarantined(0, 3), Granted(3, "s/b", 3, 7, 7, 1.0))
    t.do(events)
    assert list(t.table.quarantined) == [Span(0, 3)]
    assert list(t.table.attempts) == [(0, 3, 2)], "what is set aside can be asked why"


def test_a_grant_ends_before_worn_positions(t: Driver) -> None:
    first = t.grant("s/b", 2, ttl_s=1e12)
    expire(t, 3, times=2)
    t.do(t.table.decide_return([first.id], replica="s/b", reason="released"))
    assert t.do(t.table.decide_grant("s/b", num_blocks=9, ttl_s=1.0)) == (
        Granted(4, "s/b", 0, 2, 2, 1.0),
    )
    assert t.do(t.table.decide_grant("s/b", num_blocks=9, ttl_s=1.0)) == (
        Quarantined(2, 5),
        Granted(5, "s/b", 5, 10, 10, 1.0),
    )


def test_quarantine_ends_the_claim_of_an_expired_lease(t: Driver) -> None:
    expire(t, 3, times=2)
    assert t.table.decide_revive([2], replica="s/a", ttl_s=1.0) == (Revived(2, 1.0),)
    t.do(t.table.decide_grant("s/b", num_blocks=1, ttl_s=1.0))
    assert t.table.decide_revive([2], replica="s/a", ttl_s=1.0) == ()


def test_a_table_of_committed_and_worn_positions_is_complete(t: Driver) -> None:
    expire(t, 10, times=2)
    aside, granted = t.do(t.table.decide_grant("s/a", num_blocks=10, ttl_s=1.0))
    assert (aside, isinstance(granted, Granted)) == (Quarantined(0, 10), True)
    t.commit(D, *t.table.leases())
    assert t.table.complete
    assert (t.table.committed.total, t.table.quarantined.total) == (10, 10)


def test_nothing_but_worn_positions_is_no_grant(t: Driver) -> None:
    held = t.grant("s/b", 10, ttl_s=1e12)
    expire(t, 10, times=2)
    assert t.do(t.table.decide_grant("s/b", num_blocks=9, ttl_s=1.0)) == (Quarantined(10, 20),)
    assert not t.table.complete
    t.commit(D, held)
    assert t.table.complete


def test_without_a_limit_nothing_is_set_aside() -> None:
    t = Driver(LeaseTable(20, epoch_positions=10))
    expire(t, 5, times=50)
    assert list(t.table.attempts) == [(0, 5, 50)]
    assert t.grant("s/a", 5).span == Span(0, 5)


def test_a_quarantine_of_what_is_not_free_is_damage(t: Driver) -> None:
    t.grant("s/a", 3)
    with pytest.raises(LeaseError, match=r"not in the set.*the journal is damaged"):
        t.table.apply(Quarantined(2, 4), 0.0)
