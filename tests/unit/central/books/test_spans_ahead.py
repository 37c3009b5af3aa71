"""Spans leased ahead, started, stolen; blocks set aside; phases sized to end together."""

import pytest

from pww.central import sizing
from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.central.membership import Member, Seat
from pww.lease.space import BlockSpace
from pww.wire import Acquire, Granted, Heartbeat, Instruction, Renewal


def who(site) -> dict[str, str]:
    return {"replica": site.replica, "incarnation": site.incarnation}


def acquire(site, number: int, blocks: int = 2) -> Acquire:
    return Acquire(**who(site), key=f"{number:032x}", num_blocks=blocks, ttl_s=30.0)


def take_ahead(site, number: int, blocks: int) -> object:
    call = acquire(site, number, blocks).model_copy(update={"ahead": True})
    return site.desk.books.acquire(call).answer


def beat(site, *renewals: Renewal, rate: float = 0.0) -> Instruction:
    message = Heartbeat(**who(site), leases=renewals, windows_per_s=rate)
    return site.desk.books.heartbeat(message)


def test_a_lease_taken_ahead_may_be_stolen_until_it_is_started(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    running = a.acquire(12)
    ahead = take_ahead(a, 900, 8).lease
    assert (ahead.watermark, ahead.span.start) == (12, 12)
    assert desk.books.expected() == {"s/a"}
    stolen = b.acquire(5)
    assert stolen.watermark == stolen.span.stop == 20
    state = beat(a, Renewal(id=running.id, ttl_s=30.0), Renewal(id=ahead.id, ttl_s=30.0)).leases
    assert state[1].stop == stolen.span.start == 15
    assert state[1].watermark == 12
    order = beat(a, Renewal(id=ahead.id, ttl_s=30.0, start=True)).leases[0]
    assert order.watermark == order.stop == stolen.span.start
    desk.restart()
    held = desk.books._state.table.find(ahead.id, replica="s/a")
    assert held.watermark == order.stop, "it was durable before the reply left"
    c = desk.site("s/c")
    assert c.ask(8).kind == "wait", "what is started is nobody else's"


def test_a_replica_that_only_has_a_span_ahead_is_not_expected(desk) -> None:
    """It waits for theta, or between two phases: no round waits for it."""
    site = desk.site()
    ahead = take_ahead(site, 900, 4).lease
    assert desk.books.expected() == frozenset()
    beat(site, Renewal(id=ahead.id, ttl_s=30.0, start=True))
    assert desk.books.expected() == {"s/a"}


def test_who_takes_ahead_does_not_steal(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    take_ahead(a, 900, 20)
    assert take_ahead(b, 901, 4).kind == "wait"
    assert isinstance(b.ask(4), Granted)


def test_a_delta_of_a_lease_that_was_not_started_is_rejected(desk) -> None:
    site = desk.site()
    ahead = take_ahead(site, 900, 4).lease
    verdict = desk.books.receive(site.offer(ahead))
    assert verdict is not None
    assert "never authorised" in verdict.reason
    assert desk.coverage() == (0, 0, 20)


def test_a_block_that_is_reclaimed_too_often_is_set_aside_and_named(desk) -> None:
    desk.ledger.close()
    desk.darl = desk.darl.model_copy(update={"max_attempts": 2})
    desk.open()
    for number in range(2):
        site = desk.site()
        site.acquire(3, ttl_s=5.0, key=f"{900 + number:032x}")
        desk.clock.advance(11.0)
        desk.books.tick()
    other = desk.site("s/b")
    rest = other.acquire(20)
    assert (rest.span.start, rest.span.stop) == (3, 20)
    desk.restart()
    assert desk.books.status()["coverage"]["quarantined"] == 3
    desk.merge(other.deliver(rest))
    answer = other.ask()
    assert answer.kind == "exhausted"
    assert (answer.committed, answer.num_quarantined) == (17, 3)
    named = tuple(desk.space.block(p) for p in range(3))
    assert answer.quarantined == named == tuple(desk.books.status()["quarantined_blocks"])
    assert desk.books.exhausted()


def test_a_rejection_is_no_attempt(desk) -> None:
    desk.ledger.close()
    desk.darl = desk.darl.model_copy(update={"max_attempts": 1})
    desk.open()
    site = desk.site()
    for number in range(3):
        lease = site.acquire(3, key=f"{900 + number:032x}")
        offer = site.deliver(lease)
        desk.books.reject(offer.delta, "nan")
    assert desk.coverage() == (0, 0, 20)
    assert site.acquire(3).span.start == 0


def test_phases_are_balanced_by_measured_speed(desk) -> None:
    desk.ledger.close()
    ledger = Ledger(desk.folder / "other.sqlite")
    space = BlockSpace(
        num_windows=4000, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
    )
    desk.space, desk.ledger = space, ledger
    desk.books = Coordinator(
        ledger, space, darl=desk.darl, aggregator_port=1, clock=desk.clock, balanced=True,
        new_run=desk.token,
    )  # fmt: skip
    fast, slow, new = desk.site("s/fast"), desk.site("s/slow"), desk.site("s/new")
    beat(fast, rate=80.0)
    beat(slow, rate=10.0)
    spans = [site.acquire(40).span for site in (fast, slow, new)]
    assert [len(span) for span in spans] == [40, 5, 40], "who was never measured gets what it asks"
    beat(slow, rate=0.001)
    assert len(slow.acquire(40).span) == 1
    desk.clock.advance(11.0)
    beat(slow, rate=10.0)
    desk.books.tick()
    assert len(slow.acquire(40).span) == 40, "the fastest of those who are there"


def test_a_replica_that_came_too_late_gets_phases_that_fit_the_window(desk) -> None:
    """Four rounds pass during its phase of 8 blocks, two may: so it gets 8 * 3/5."""
    slow, fast = desk.site("s/slow"), desk.site("s/fast")
    lease = slow.acquire(8)
    for _ in range(4):
        fast.contribute(1)
    verdict = desk.books.receive(slow.offer(lease, base_round=0))
    assert verdict is not None
    assert "staleness 4 exceeds the window of 2 rounds" in verdict.reason
    assert len(fast.acquire(8).span) == 8, "it is nobody else's trouble"
    assert len(slow.acquire(8).span) == 5


def test_it_gets_longer_ones_again_when_it_is_in_time(desk) -> None:
    slow, fast = desk.site("s/slow"), desk.site("s/fast")
    lease = slow.acquire(4)
    for _ in range(4):
        fast.contribute(1)
    assert desk.books.receive(slow.offer(lease, base_round=0)) is not None
    slow.contribute(6)
    assert len(slow.acquire(6).span) == 6


@pytest.mark.parametrize(
    ("fit", "staleness", "window", "after"),
    [(1.0, 0, 2, 1.0), (1.0, 2, 2, 1.0), (1.0, 5, 2, 0.5), (0.5, 5, 2, 0.25), (0.25, 0, 2, 0.5),
     (0.25, 1, 2, 0.25), (1.0, 1, 0, 0.5)],
)  # fmt: skip
def test_the_share_that_fits(fit, staleness, window, after) -> None:
    assert sizing.fit_after(fit, staleness=staleness, window=window) == after


@pytest.mark.parametrize(
    ("rates", "states", "asked", "got"),
    [
        ([1.0, 4.0], ["live", "live"], 8, 2),
        ([1.0, 4.0], ["live", "gone"], 8, 8),
        ([4.0, 1.0], ["live", "live"], 8, 8),
        ([0.0, 4.0], ["live", "live"], 8, 8),
        ([1.0, 400.0], ["live", "live"], 8, 1),
    ],
)
def test_the_fastest_gets_what_it_asks_and_nobody_more(rates, states, asked, got) -> None:
    seats = [
        Seat(Member(f"s/{i}", "1" * 32, ""), state, 0.0, windows_per_s=rate)
        for i, (rate, state) in enumerate(zip(rates, states, strict=True))
    ]
    assert sizing.num_blocks(asked, seat=seats[0], seats=seats, balanced=True) == got
    assert sizing.num_blocks(asked, seat=seats[0], seats=seats, balanced=False) == asked


def test_what_was_measured_is_the_replicas_through_requeues_and_restarts(desk) -> None:
    slow, fast = desk.site("s/slow"), desk.site("s/fast")
    lease = slow.acquire(4)
    for _ in range(4):
        fast.contribute(1)
    assert desk.books.receive(slow.offer(lease, base_round=0)) is not None
    seat = desk.books._state.seats["s/slow"]
    fit = seat.fit
    assert fit == pytest.approx(0.6)
    slow.leave()
    desk.site("s/slow")
    assert desk.books._state.seats["s/slow"].fit == fit
    assert desk.books._state.seats["s/slow"].last is not None
    desk.restart()
    again = desk.books._state.seats["s/slow"]
    assert again.fit == fit
    assert again.windows_per_s == pytest.approx(10.0 / 8)  # of its last delta: 10 tokens/s


def test_who_has_not_measured_yet_does_not_wipe_out_what_is_known(desk) -> None:
    site = desk.site()
    beat(site, rate=5.0)
    beat(site, rate=0.0)
    assert desk.books.status()["members"][0]["windows_per_s"] == 5.0


def test_a_lease_says_what_size_the_phase_was_meant_to_have(desk) -> None:
    site, other = desk.site("s/a"), desk.site("s/b")
    assert site.acquire(7, key="7" * 32).meant == 7
    assert site.acquire(7, key="7" * 32).meant == 7, "told again"
    short = other.acquire(15)
    assert (len(short.span), short.meant) == (13, 15), "the corpus ended"


def test_silence_is_noticed_although_the_rounds_thread_is_busy(desk) -> None:
    site, other = desk.site("s/a"), desk.site("s/b")
    del site
    for _ in range(4):
        desk.clock.advance(3.0)
        other.beat()
    assert [m.replica for m in desk.books.live()] == ["s/b"]
