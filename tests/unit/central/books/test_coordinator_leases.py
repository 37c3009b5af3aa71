"""Acquire, heartbeat, release, expiry, and what a restart keeps."""

import threading

import pytest
from pydantic import ValidationError

from pww.central.replies import KEPT
from pww.clock import SystemClock
from pww.errors import Refused
from pww.lease.space import BlockSpace
from pww.wire import Acquire, Exhausted, Granted, Release, Span, Wait


def test_grants_are_disjoint_and_lowest_first(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    assert [site.acquire().span.start for site in (a, b, a, b)] == [0, 3, 6, 9]
    assert a.acquire().watermark == 15
    assert desk.coverage() == (0, 15, 5)


def test_a_lost_reply_is_repeated_not_granted_again(desk) -> None:
    site = desk.site()
    lease = site.acquire(key="7" * 32)
    again = site.acquire(key="7" * 32)
    assert (again.id, again.span, again.ttl_s) == (lease.id, lease.span, 30.0)
    desk.restart()
    again = site.acquire(key="7" * 32)
    assert (again.id, again.span, again.ttl_s) == (lease.id, lease.span, 30.0)
    assert desk.coverage() == (0, 3, 17)
    assert site.acquire().id != lease.id


def test_a_repeated_key_gets_no_second_lease_after_its_first_went_to_another(desk) -> None:
    site, other = desk.site("s/a"), desk.site("s/b")
    key = "7" * 32
    lost = site.acquire(key=key, ttl_s=5.0)
    desk.clock.advance(6.0)
    assert other.acquire().span == lost.span
    assert site.ask(key=key) == Wait(retry_after_s=0.0), "who still wants one asks with a new key"
    assert site.acquire(key="8" * 32).span == Span(3, 6)
    assert desk.coverage() == (0, 6, 14)


def test_a_copy_of_a_request_that_comes_after_its_delta_leases_nothing(desk) -> None:
    site = desk.site()
    lease = site.acquire(key="7" * 32)
    offer = site.deliver(lease)
    assert site.ask(key="7" * 32) == Wait(retry_after_s=0.0), "its delta is received"
    desk.merge(offer)
    assert site.ask(key="7" * 32) == Wait(retry_after_s=0.0), "its blocks are committed"
    assert desk.coverage() == (3, 0, 17)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_last_keys_of_a_process_are_remembered_and_no_more(desk, restarted) -> None:
    site = desk.site()
    keys = [f"{number:032x}" for number in range(1000, 1000 + KEPT + 1)]
    leases = [site.acquire(1, key=keys[0])]
    for key in keys[1:]:
        site.release(leases[-1])
        leases.append(site.acquire(1, key=key))
    if restarted:
        desk.restart()
    assert site.ask(1, key=keys[1]) == Wait(retry_after_s=0.0)
    assert site.acquire(1, key=keys[-1]).id == leases[-1].id
    assert desk.ledger.rows("SELECT COUNT(*) FROM replies") == [(KEPT,)]
    assert site.acquire(1, key=keys[0]).id > leases[-1].id, "it is as good as new"


def test_a_repeated_key_revives_a_lease_that_expired_and_nobody_got(desk) -> None:
    site = desk.site()
    lease = site.acquire(key="7" * 32, ttl_s=5.0)
    desk.clock.advance(6.0)
    again = site.acquire(key="7" * 32)
    assert (again.id, again.span, again.ttl_s) == (lease.id, lease.span, 30.0)
    desk.clock.advance(29.0)
    desk.books.tick()
    assert desk.coverage() == (0, 3, 17)


def test_a_key_names_one_request(desk) -> None:
    site, other = desk.site("s/a"), desk.site("s/b")
    site.acquire(key="7" * 32)
    for call in (lambda: other.acquire(key="7" * 32), lambda: site.acquire(4, key="7" * 32)):
        with pytest.raises(Refused, match=f"key {'7' * 32} was used for another") as caught:
            call()
        assert caught.value.code == "bad_request"


def test_wait_is_not_exhausted(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    offer = a.deliver(a.acquire(20))
    assert b.ask() == Wait(retry_after_s=1.0)
    assert not desk.books.exhausted()
    desk.merge(offer)
    assert b.ask() == Exhausted(committed=20)
    assert desk.books.exhausted()
    assert desk.books.status()["complete"]


def test_a_waiting_replica_gets_what_comes_back(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    a.acquire(20, ttl_s=5.0)
    assert isinstance(b.ask(), Wait)
    desk.clock.advance(5.0)
    assert isinstance(b.ask(), Granted)


def test_a_copy_of_a_request_that_was_told_to_wait_leases_nothing(desk) -> None:
    """Its sender asks with a new key: a lease of this one would be in nobody's hands."""
    a, b = desk.site("s/a"), desk.site("s/b")
    key = "7" * 32
    a.acquire(20, ttl_s=5.0)
    assert isinstance(b.ask(key=key), Wait)
    desk.clock.advance(5.0)
    assert isinstance(b.ask(key=key), Wait)
    assert desk.coverage() == (0, 0, 20)
    assert isinstance(b.ask(key="8" * 32), Granted)


def test_leases_expire_by_the_monotonic_clock_only(desk) -> None:
    site = desk.site()
    kept, lost = site.acquire(ttl_s=30.0), site.acquire(ttl_s=30.0)
    desk.clock.jump_wall(1e6)
    desk.books.tick()
    assert desk.coverage() == (0, 6, 14)
    desk.clock.advance(20.0)
    site.beat(kept.id)
    desk.clock.advance(10.0)
    desk.clock.jump_wall(-1e6)
    desk.books.tick()
    assert desk.coverage() == (0, 3, 17)
    assert desk.site("s/b").acquire().span == lost.span
    assert [state.valid for state in site.beat(kept.id, lost.id).leases] == [True, False]


def test_an_expired_lease_that_nobody_got_is_renewed(desk) -> None:
    site = desk.site()
    lease = site.acquire(ttl_s=5.0)
    desk.clock.advance(6.0)
    desk.books.tick()
    state = site.beat(lease.id).leases[0]
    assert (state.valid, state.stop, state.watermark) == (True, 3, 3)
    desk.clock.advance(29.0)
    desk.books.tick()
    assert desk.coverage() == (0, 3, 17)


def test_a_received_delta_pins_its_lease(desk) -> None:
    site = desk.site()
    lease = site.acquire()
    offer = site.deliver(lease)
    assert desk.books.expected() == frozenset()
    desk.clock.advance(1e6)
    desk.books.tick()
    site.beat()
    desk.books.release(Release(replica="s/a", incarnation=site.incarnation, leases=(lease.id,)))
    assert desk.site("s/b").acquire().span.start == 3
    desk.merge(offer)
    assert desk.coverage()[0] == 3


def test_release_returns_only_own_leases(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    lease = a.acquire()
    for site, unassigned in ((b, 17), (a, 20), (a, 20)):
        desk.books.release(
            Release(replica=site.replica, incarnation=site.incarnation, leases=(lease.id,))
        )
        assert desk.coverage()[2] == unassigned


def test_every_answer_names_the_newest_round(desk) -> None:
    site, other = desk.site("s/a"), desk.site("s/b")
    key = "7" * 32
    assert (site.answer(4, key=key).round, site.beat().round) == (0, 0)
    for _ in range(4):
        other.contribute(4)
    assert site.answer(4, key=key).round == 4, "a grant that is repeated too"
    waiting = site.answer(4)
    assert (waiting.round, isinstance(waiting.answer, Wait)) == (4, True)
    other.leave()
    site.leave()
    last = desk.site("s/c")
    last.contribute(4)
    done = last.answer(4)
    assert (done.round, isinstance(done.answer, Exhausted)) == (5, True)
    assert last.beat().round == 5


def test_the_windows_that_are_committed_are_those_of_the_merged_spans(desk) -> None:
    first = desk.site().contribute(4)
    expected = desk.space.num_span_windows(first.spans[0].span)
    assert desk.books.committed_windows == expected


def test_epochs_are_not_straddled(make_desk, two_epochs: BlockSpace) -> None:
    desk = make_desk(space=two_epochs)
    site = desk.site()
    spans = [site.acquire(15).span for _ in range(4)]
    assert spans == [Span(0, 15), Span(15, 20), Span(20, 35), Span(35, 40)]


def test_a_restart_keeps_leases_for_the_grace_period(desk) -> None:
    site = desk.site()
    lease = site.acquire(ttl_s=5.0)
    desk.clock.advance(4.0)
    desk.restart()
    assert desk.gate.seen == [("joined", site.incarnation)], "restored members are announced"
    desk.clock.advance(59.0)
    desk.books.tick()
    assert desk.books.live() != ()
    assert desk.coverage() == (0, 3, 17)
    desk.clock.advance(1.0)
    desk.books.tick()
    assert desk.books.live() == ()
    assert desk.coverage() == (0, 0, 20)
    assert site.beat(lease.id).leases[0].valid


@pytest.mark.parametrize("renewed_s", [0.0, 20.0, 299.0, 301.0, 400.0, 5000.0])
@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_takes_no_lease_that_its_holder_counts_on(desk, renewed_s, restarts) -> None:
    """The holder counts from its sending, which is now; the manual clock goes on in between."""
    site, other = desk.site("s/a"), desk.site("s/b")
    lease = site.acquire(20, ttl_s=300.0)
    certain_s = desk.clock.monotonic() + 300.0
    if renewed_s:
        desk.clock.advance(10.0)
        site.beat(lease.id, ttl_s=renewed_s)
        certain_s = max(certain_s, desk.clock.monotonic() + renewed_s)
    for _ in range(restarts):
        desk.clock.advance(1.0)
        desk.restart()
    while desk.clock.monotonic() < certain_s:
        assert isinstance(other.ask(1), Wait)
        desk.clock.advance(5.0)
    desk.clock.advance(max(300.0, 1.25 * renewed_s))
    assert isinstance(other.ask(1), Granted), "but not for ever"


def test_a_claimed_lease_is_kept_through_a_restart_for_the_time_that_it_was_told(desk) -> None:
    desk.darl = desk.darl.model_copy(update={"restore_grace_s": 1.0})
    desk.restart()
    site = desk.site("s/a")
    lease = site.acquire(20, ttl_s=5.0)
    (told,) = site.register(leases=(lease.id,)).leases
    assert told.ttl_s == 30.0
    desk.restart()
    desk.clock.advance(told.ttl_s - 1.0)
    assert isinstance(desk.site("s/b").ask(1), Wait)


def test_renewals_of_the_same_size_cost_no_event(desk) -> None:
    site = desk.site()
    lease = site.acquire(ttl_s=30.0)

    def events() -> int:
        return int(desk.ledger.rows("SELECT COUNT(*) FROM lease_events")[0][0])

    before = events()
    for ttl_s in (30.0, 29.0, 100.0, 101.0, 120.0, 99.0):
        site.beat(lease.id, ttl_s=ttl_s)
    assert events() == before + 1


def test_nobody_holds_a_lease_for_more_than_a_day(desk) -> None:
    site = desk.site()
    with pytest.raises(ValidationError, match="less than or equal to 86400"):
        site.acquire(ttl_s=86_401.0)
    lease = site.acquire(2**40 - 1, ttl_s=86_400.0)
    assert lease.span == Span(0, 20), "what is there"
    with pytest.raises(ValidationError, match="less than or equal to 86400"):
        site.beat(lease.id, ttl_s=1e9)
    desk.clock.advance(86_400.0)
    desk.books.tick()
    assert desk.coverage() == (0, 0, 20)


def test_after_a_restart_a_dead_process_is_replaced_after_the_detection_time(desk) -> None:
    desk.site()
    desk.restart()
    with pytest.raises(Refused, match="running already") as caught:
        desk.site()
    assert caught.value.retry_after_s == pytest.approx(10.0)
    desk.clock.advance(10.0)
    desk.site()


def test_a_member_heard_after_a_restart_has_the_usual_time(desk) -> None:
    site = desk.site()
    desk.restart()
    desk.clock.advance(1.0)
    site.beat()
    desk.clock.advance(10.0)
    desk.books.tick()
    assert desk.books.live() == ()


def test_members_that_were_gone_or_left_stay_so(desk) -> None:
    desk.site("s/a").leave()
    desk.site("s/b")
    desk.clock.advance(10.0)
    desk.books.tick()
    desk.restart()
    assert desk.books.live() == ()
    assert [m["state"] for m in desk.books.status()["members"]] == ["left", "gone"]


def test_a_restart_gives_the_same_books(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    for _ in range(2):
        a.contribute()
    desk.books.reject(b.deliver(b.acquire()).delta, "nan")
    b.deliver(b.acquire())
    a.acquire(ttl_s=1.0)
    desk.clock.advance(2.0)
    desk.books.tick()

    def picture() -> tuple[object, ...]:
        table = desk.books._state.table
        status = desk.books.status()
        return (
            list(table.leases()), list(table.committed), list(table.unassigned),
            table.committed_by, table.dump(), status["coverage"], status["committed_windows"],
            desk.books.run, desk.books.round, desk.books.generation, desk.books.state_hash,
            desk.books.report(), desk.books.verdicts("s/a"), desk.books.verdicts("s/b"),
            [(s.offer, s.staleness) for s in desk.books.staged()],
            desk.books._state.last_merged, desk.books.live(), desk.books.expected(),
        )  # fmt: skip

    before = picture()
    desk.restart()
    assert picture() == before


def test_status_names_leases_and_hides_incarnations(desk) -> None:
    site = desk.site()
    lease = site.acquire()
    site.beat(lease.id)
    desk.clock.advance(2.0)
    status = desk.books.status()
    (member,) = status["members"]
    assert (member["replica"], member["state"], member["last_seen_s"]) == ("s/a", "live", 2.0)
    assert member["windows_per_s"] == 2.0
    assert member["leases"] == [
        {
            "id": lease.id, "start": 0, "stop": 3, "watermark": 3, "remaining_s": 28.0,
            "received": False,
        }
    ]  # fmt: skip
    assert site.incarnation not in str(status)
    assert (status["merges"], status["round"], status["run"]) == (0, 0, desk.books.run)


def test_many_threads_get_disjoint_leases(make_desk) -> None:
    desk = make_desk(space=BlockSpace(
        num_windows=4000, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
    ))  # fmt: skip
    sites = [desk.site(f"s/{i}") for i in range(8)]
    keys = [[desk.token() for _ in range(6)] for _ in sites]
    spans: list[Span] = []
    faults: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for key in keys[i]:
                for _ in range(2):  # each reply is "lost" once
                    answer = desk.books.acquire(
                        Acquire(
                            replica=f"s/{i}", incarnation=sites[i].incarnation, key=key,
                            num_blocks=3, ttl_s=30.0,
                        )
                    ).answer  # fmt: skip
                assert isinstance(answer, Granted)
                spans.append(answer.lease.span)
                sites[i].beat(answer.lease.id)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    start_s = SystemClock().monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert SystemClock().monotonic() - start_s < 60
    positions = [p for span in spans for p in range(span.start, span.stop)]
    assert sorted(positions) == list(range(8 * 6 * 3))
    assert desk.coverage() == (0, 144, 856)
