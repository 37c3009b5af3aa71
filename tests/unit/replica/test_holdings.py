"""What a holder may count on: ends shrink, watermarks rise, time runs from the first sending."""

import pytest

from pww.replica.holdings import Holdings
from pww.wire import Instruction, Lease, LeaseState, Renewal, Span


def lease(id_: int, start: int, stop: int, *, watermark: int, ttl_s: float = 30.0) -> Lease:
    return Lease(id=id_, replica="s/a", span=Span(start, stop), watermark=watermark, ttl_s=ttl_s)


def order(*states: tuple[int, bool, int, int]) -> Instruction:
    return Instruction(
        leases=tuple(
            LeaseState(id=i, valid=valid, stop=stop, watermark=mark)
            for i, valid, stop, mark in states
        ),
        round=0,
    )


ASKED = (Renewal(id=1, ttl_s=30.0),)


def test_a_lease_counts_from_the_first_sending_of_its_request() -> None:
    held = Holdings()
    held.take(lease(1, 0, 4, watermark=4), asked_s=100.0)
    assert held.standing(1, 129.9) == "draw"
    assert held.standing(1, 130.0) == "pause"
    held.obey(order((1, True, 4, 4)), ASKED, asked_s=115.0)
    assert held.standing(1, 144.9) == "draw"
    assert held.standing(1, 145.0) == "pause"
    held.obey(order((1, True, 4, 4)), ASKED, asked_s=103.0)  # an older one that comes late
    assert held.standing(1, 144.9) == "draw"


def test_what_was_not_asked_for_is_not_counted_on() -> None:
    held = Holdings()
    held.take(lease(1, 0, 4, watermark=4), asked_s=100.0)
    held.obey(order((1, True, 4, 4)), (), asked_s=125.0)
    assert held.standing(1, 130.0) == "pause"


def test_an_end_only_shrinks_and_a_watermark_only_rises() -> None:
    held = Holdings()
    held.take(lease(1, 4, 10, watermark=4), asked_s=0.0)
    assert held.standing(1, 1.0) == "pause", "work on it is not authorised"
    held.obey(order((1, True, 8, 4)), ASKED, asked_s=1.0)
    held.obey(order((1, True, 10, 4)), ASKED, asked_s=2.0)  # sent before the steal
    assert held.get(1) == lease(1, 4, 8, watermark=4)
    held.obey(order((1, True, 8, 8)), ASKED, asked_s=3.0)
    held.obey(order((1, True, 8, 4)), ASKED, asked_s=4.0)  # sent before the raise
    assert held.get(1) == lease(1, 4, 8, watermark=8)
    assert held.standing(1, 5.0) == "draw"


def test_a_lease_that_was_called_invalid_is_gone_for_good() -> None:
    held = Holdings()
    held.take(lease(1, 0, 4, watermark=4), asked_s=0.0)
    held.take(lease(2, 4, 8, watermark=4), asked_s=0.0)
    assert held.obey(order((1, False, 0, 0), (2, True, 4, 4)), ASKED, asked_s=1.0) == (1, 2)
    assert held.obey(order((1, True, 4, 4)), ASKED, asked_s=2.0) == ()
    assert held.standing(1, 3.0) == "lost"
    assert held.get(2) is None, "nothing of it is left"
    assert list(held) == []


def test_only_the_lease_that_begins_soon_is_started() -> None:
    held = Holdings()
    for number in (3, 1):
        held.take(lease(number, number, number + 1, watermark=number), asked_s=0.0)
    assert held.renewals(ttl_s=9.0, start=1) == (
        Renewal(id=3, ttl_s=9.0), Renewal(id=1, ttl_s=9.0, start=True),
    )  # fmt: skip
    held.drop(3)
    held.drop(3)
    assert held.renewals(ttl_s=9.0, start=-1) == (Renewal(id=1, ttl_s=9.0),)
    held.clear()
    assert 1 not in held


@pytest.mark.parametrize("watermark", [0, 3])
def test_a_lease_that_is_not_started_whole_is_not_drawn_from(watermark: int) -> None:
    held = Holdings()
    held.take(lease(1, 0, 4, watermark=watermark), asked_s=0.0)
    assert held.standing(1, 0.0) == "pause"
