"""Watermarks and stealing: who may start what, and whose tail goes to whom."""

from collections.abc import Iterator

import pytest
from lease_driver import D, Driver

from pww.errors import LeaseError
from pww.lease.events import Event, Granted, Pinned, Raised, Returned, Revived, Shrunk
from pww.lease.held import Held
from pww.lease.table import LeaseTable
from pww.wire import Leased, Span


@pytest.fixture
def t() -> Iterator[Driver]:
    driver = Driver(LeaseTable(200, epoch_positions=100))
    yield driver
    driver.table.verify()


def steal(t: Driver, thief: str = "s/z", blocks: int = 99, **rates: float) -> tuple[Event, ...]:
    return t.table.decide_steal(
        thief,
        num_blocks=blocks,
        ttl_s=7.0,
        rates={f"s/{name}": rate for name, rate in rates.items()},
    )


def test_a_lease_taken_ahead_is_authorised_by_a_raise_only(t: Driver) -> None:
    now, ahead = t.grant("s/a", 4), t.grant("s/a", 6, ahead=True)
    assert (now.watermark, now.started) == (4, True)
    assert (ahead.watermark, ahead.started) == (4, False)
    assert list(t.table.started("s/a")) == [now]
    asked = [now.id, ahead.id, ahead.id, 99]
    assert t.table.decide_raise(asked, replica="s/b") == (), "only its own"
    assert t.do(t.table.decide_raise(asked, replica="s/a")) == (Raised(ahead.id, 10),)
    assert t.now(ahead).started
    assert t.table.decide_raise(asked, replica="s/a") == (), "once is enough"


def test_a_delta_over_work_that_was_never_authorised_is_refused(t: Driver) -> None:
    ahead = t.grant("s/a", 6, ahead=True)
    with pytest.raises(LeaseError, match=r"its watermark is 0 of \[0, 6\): work on it was never"):
        t.pin(D, ahead)
    t.do(t.table.decide_expiry(10.0))
    with pytest.raises(LeaseError, match="work on it was never authorised"):
        t.pin(D, ahead)


def test_a_delta_names_the_present_span_of_a_lease_that_shrank(t: Driver) -> None:
    ahead = t.grant("s/a", 8, ahead=True)
    t.do(steal(t))
    t.do(t.table.decide_raise([ahead.id], replica="s/a"))
    with pytest.raises(LeaseError, match=r"holds \[0, 4\), the delta names \[0, 8\)"):
        t.pin(D, ahead)
    t.commit(D, t.now(ahead))
    assert t.table.committed_by == {"s/a": 4}


def test_what_is_authorised_or_delivered_or_ones_own_is_not_stolen(t: Driver) -> None:
    t.grant("s/a", 4)
    raised = t.grant("s/a", 4, ahead=True)
    t.do(t.table.decide_raise([raised.id], replica="s/a"))
    t.pin(D, t.grant("s/a", 4))
    t.grant("s/z", 4, ahead=True)
    assert steal(t) == ()
    assert steal(t, "s/a") != ()


def test_half_is_stolen_when_speeds_are_unknown(t: Driver) -> None:
    victim = t.grant("s/a", 9, ahead=True)
    assert t.do(steal(t)) == (
        Shrunk(victim.id, 5),
        Granted(victim.id + 1, "s/z", 5, 9, 9, 7.0),
    )
    assert t.now(victim) == Held(victim.id, "s/a", 0, 5, 0)
    assert t.table.remaining_s(victim.id + 1, 0.0) == 7.0


def test_thief_and_victim_finish_together(t: Driver) -> None:
    """90 positions at 1 and 8 a second: 10 s for either when the thief has 80."""
    victim = t.grant("s/a", 90, ahead=True)
    assert t.do(steal(t, a=1.0, z=8.0))[0] == Shrunk(victim.id, 10)
    assert steal(t, "s/y", a=2.0, y=3.0)[0] == Shrunk(victim.id, 4)


def test_started_work_delays_the_victim(t: Driver) -> None:
    """40 in work and 20 ahead: with equal speeds 30 would be fair, but there are 20 to spare."""
    t.grant("s/a", 40)
    ahead = t.grant("s/a", 20, ahead=True)
    assert steal(t, a=1.0, z=1.0)[0] == Returned(ahead.id, "stolen")
    assert steal(t, a=2.0, z=1.0) == (
        Returned(ahead.id, "stolen"),
        Granted(3, "s/z", 40, 60, 60, 7.0),
    )
    assert steal(t, a=5.0, z=1.0)[0] == Shrunk(ahead.id, 50)


def test_no_more_than_asked_and_no_less_than_one(t: Driver) -> None:
    victim = t.grant("s/a", 50, ahead=True)
    assert steal(t, blocks=3)[0] == Shrunk(victim.id, 47)
    assert steal(t, a=1e9, z=1e-9)[0] == Shrunk(victim.id, 49)
    assert steal(t, a=1e308, z=5e-324)[0] == Shrunk(victim.id, 49)


def test_the_last_position_of_a_lease_is_stolen_too(t: Driver) -> None:
    victim = t.grant("s/a", 1, ahead=True)
    events = t.do(steal(t))
    assert events == (Returned(victim.id, "stolen"), Granted(2, "s/z", 0, 1, 1, 7.0))
    assert t.table.find(victim.id, replica="s/a") is None
    assert t.table.decide_revive([victim.id], replica="s/a", ttl_s=1.0) == (), "it does not return"
    assert not t.table.attempts, "no work on it had begun"


def test_the_lease_that_finishes_last_is_stolen_from(t: Driver) -> None:
    a = t.grant("s/a", 10, ahead=True)
    b = t.grant("s/b", 30, ahead=True)
    assert steal(t, a=1.0, b=4.0)[0] == Shrunk(a.id, 5), "10 s against 7.5 s"
    assert steal(t, a=1.0, b=2.0)[0] == Shrunk(b.id, 25), "10 s against 15 s"
    later = t.grant("s/a", 10, ahead=True)
    assert steal(t, a=1.0, b=2.0)[0] == Returned(later.id, "stolen"), "20 s, all before it counts"
    delivered = t.grant("s/b", 30)
    assert steal(t, a=1.0, b=2.0)[0] == Returned(later.id, "stolen"), "what is started stays"
    t.pin(D, delivered)
    assert steal(t, a=1.0, b=2.0)[0] == Returned(later.id, "stolen"), "and is no load any more"


def test_what_is_delivered_delays_nobody(t: Driver) -> None:
    a = t.grant("s/a", 20, ahead=True)
    t.pin(D, t.grant("s/b", 30))
    t.grant("s/b", 10, ahead=True)
    assert steal(t, a=1.0, b=1.0)[0] == Shrunk(a.id, 10), "20 s against 10 s"


def test_a_replica_of_unknown_speed_counts_as_the_slowest(t: Driver) -> None:
    a = t.grant("s/a", 10, ahead=True)
    b = t.grant("s/b", 11, ahead=True)
    assert steal(t, a=1.0, z=8.0)[0] == Shrunk(b.id, 16), "11 s against 10 s; half, unmeasured"
    assert steal(t, a=1.0, b=0.0)[0] == Shrunk(b.id, 16), "no speed is an unknown one"
    assert steal(t, b=2.0, a=float("nan"))[0] == Shrunk(b.id, 16)
    assert steal(t, b=3.0, c=2.0)[0] == Shrunk(a.id, 5), "5 s against 3.7 s"


def test_equal_ends_are_decided_by_what_is_to_spare_then_by_age(t: Driver) -> None:
    t.grant("s/a", 6)
    t.grant("s/a", 4, ahead=True)
    b, c = t.grant("s/b", 10, ahead=True), t.grant("s/c", 10, ahead=True)
    assert steal(t)[0] == Shrunk(b.id, 15)
    t.do(t.table.decide_raise([b.id], replica="s/b"))
    assert steal(t)[0] == Shrunk(c.id, 25)


def test_a_theft_ends_no_claim_but_its_own(t: Driver) -> None:
    before = t.grant("s/b", 3, ttl_s=1.0)
    t.grant("s/a", 6, ahead=True)
    after = t.grant("s/b", 3, ttl_s=1.0)
    t.do(t.table.decide_expiry(1.0))
    t.do(steal(t))
    both = t.table.decide_revive([before.id, after.id], replica="s/b", ttl_s=1.0)
    assert both == (Revived(before.id, 1.0), Revived(after.id, 1.0))


def test_nobody_steals_below_a_watermark_in_the_middle(t: Driver) -> None:
    """Raises authorise whole leases today; the rule does not rest on that."""
    victim = t.grant("s/a", 10, ahead=True)
    t.do((Raised(victim.id, 8),))
    assert steal(t)[0] == Shrunk(victim.id, 8)
    t.do(steal(t))
    assert steal(t) == ()
    t.commit(D, t.now(victim))


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Granted(9, "s/a", 20, 25, 26, 1.0), "watermark 26 is outside the lease"),
        (Granted(9, "s/a", 20, 25, 19, 1.0), "watermark 19 is outside the lease"),
        (Raised(2, 4), "cannot be raised to 4"),
        (Raised(2, 11), "cannot be raised to 11"),
        (Raised(1, 4), "cannot be raised to 4"),
        (Raised(7, 4), "7"),
        (Shrunk(1, 3), "cannot end at 3"),
        (Shrunk(2, 4), "cannot end at 4"),
        (Shrunk(2, 10), "cannot end at 10"),
        (Shrunk(7, 10), "7"),
        (Returned(1, "stolen"), "is authorised up to 4, not to be stolen"),
        (Returned(3, "expired"), "returns by a verdict only"),
        (Granted(9, "s/a", 20, 20, 20, 1.0), "is empty"),
        (Granted("x", "s/a", 20, 21, 21, 1.0), "not supported"),  # type: ignore[arg-type]
    ],
)
def test_a_record_against_the_rules_is_damage(t: Driver, event: Event, why: str) -> None:
    t.grant("s/a", 4)
    t.grant("s/a", 6, ahead=True)
    pinned = t.grant("s/a", 2)
    t.pin(D, pinned)
    before = t.table.dump()
    with pytest.raises(LeaseError, match=f"{why}.*the journal is damaged"):
        t.table.apply(event, 0.0)
    assert t.table.dump() == before, "and changes nothing"


def test_a_pin_on_unauthorised_work_is_damage(t: Driver) -> None:
    ahead = t.grant("s/a", 6, ahead=True)
    with pytest.raises(LeaseError, match="work on lease 1 was authorised up to 0 only"):
        t.table.apply(Pinned(ahead.id, D), 0.0)


def test_a_look_stays_true_to_its_moment(t: Driver) -> None:
    ahead = t.grant("s/a", 6, ahead=True)
    seen = list(t.table.leases())
    t.do(steal(t))
    assert seen == [ahead] != list(t.table.leases())
    assert Leased(lease=ahead.id, span=ahead.span).span == Span(0, 6)
