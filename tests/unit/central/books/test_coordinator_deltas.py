"""Deltas: admission, pins, verdicts, chains, and the one transaction of a merge."""

import pytest

from pww.errors import LeaseError, Refused
from pww.wire import Leased, Span


def rejected(desk, offer, text: str) -> None:
    verdict = desk.books.receive(offer)
    assert verdict is not None
    assert verdict.outcome == "rejected"
    assert text in verdict.reason


def test_merge_commits_and_publishes_together(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    offers = [a.deliver(a.acquire()), b.deliver(b.acquire())]
    assert desk.books.staged()[0].offer == offers[0]
    desk.merge(*offers)
    assert (desk.books.round, desk.books.generation) == (1, "round-000001")
    assert desk.books.state_hash == f"{1:064x}"
    assert desk.books.report().merged == ("s/a", "s/b")
    assert desk.coverage() == (6, 0, 14)
    assert desk.books.staged() == ()
    for offer in offers:
        verdict = desk.books.receive(offer)
        assert (verdict.outcome, verdict.round) == ("merged", 1)
    assert desk.books.verdicts("s/a") == (desk.books.receive(offers[0]),)
    assert {m["replica"]: m["committed"] for m in desk.books.status()["members"]} == {
        "s/a": 3,
        "s/b": 3,
    }


def test_staged_is_ordered_by_replica_and_delta(desk) -> None:
    b, a = desk.site("s/b"), desk.site("s/a")
    late = b.deliver(b.acquire(), delta="f" * 32)
    chained = b.deliver(b.acquire(), delta="1" * 32, prev=late.delta)
    first = a.deliver(a.acquire())
    order = [staged.offer.delta for staged in desk.books.staged()]
    assert order == [first.delta, chained.delta, late.delta]


def test_a_delta_id_counts_once(desk) -> None:
    site = desk.site()
    offer = site.deliver(site.acquire())
    assert desk.books.receive(offer) is None
    desk.merge(offer)
    assert desk.books.receive(offer).outcome == "merged"
    assert desk.coverage() == (3, 0, 17)
    for change in ({"tokens": 11}, {"base_round": 1}, {"replica": "s/b"}):
        with pytest.raises(Refused, match="received before with other content") as caught:
            desk.books.receive(offer.model_copy(update=change))
        assert caught.value.code == "bad_request"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": 0}, "computed from no tokens"),
        ({"finite": False}, "not finite"),
        ({"base_round": 9}, "starts from round 9, the central is at 0"),
        ({"prev": "8" * 32}, f"encoded after {'8' * 32}, this replica's last one is none"),
    ],
)
def test_an_inadmissible_delta_returns_its_blocks(desk, change, text: str) -> None:
    site = desk.site()
    offer = site.offer(site.acquire(), **change)
    rejected(desk, offer, text)
    assert desk.coverage() == (0, 0, 20)
    assert desk.books.staged() == ()
    rejected(desk, offer, text)
    assert len(desk.books.verdicts("s/a")) == 1


@pytest.mark.parametrize("name", ["tokens", "metrics.tokens"])
@pytest.mark.parametrize("by", [-1, 1, 2**50])
def test_tokens_are_those_of_the_spans(desk, name: str, by: int) -> None:
    """They are a delta's weight in the merge, so the books count them, not the site."""
    site = desk.site()
    offer = site.offer(site.acquire(), site.acquire(17))
    assert offer.tokens == 78 * 8, "the short block has 2 windows"
    told = offer.tokens + by
    if name == "tokens":
        offer = offer.model_copy(update={"tokens": told})
    else:
        metrics = offer.metrics.model_copy(update={"tokens": told})
        offer = offer.model_copy(update={"metrics": metrics})
    rejected(desk, offer, f"it says {name}={told}, its spans hold 624 (78 windows of 8 targets)")
    assert desk.coverage() == (0, 0, 20)
    site.deliver(site.acquire(20))


def test_spans_are_disjoint(desk) -> None:
    site = desk.site()
    one, two = site.acquire(3), site.acquire(3)
    twice = (Leased(lease=two.id, span=Span(2, 6)), Leased(lease=one.id, span=one.span))
    rejected(desk, site.offer(spans=twice), "its spans [0, 3) and [2, 6) overlap")
    one = site.acquire(3)
    same = (Leased(lease=one.id, span=one.span), Leased(lease=99, span=one.span))
    rejected(desk, site.offer(spans=same), "its spans [0, 3) and [0, 3) overlap")
    assert desk.coverage() == (0, 0, 20)


def test_a_span_outside_the_index_space_is_no_fault_of_ours(desk) -> None:
    site = desk.site()
    lease = site.acquire()
    offer = site.offer(lease)
    beyond = Leased(lease=lease.id, span=Span(0, 2**62))
    rejected(desk, offer.model_copy(update={"spans": (beyond,)}), "is outside the index space")
    assert desk.coverage() == (0, 0, 20)


def test_strangers_leave_no_trace(desk) -> None:
    site = desk.site()
    lease = site.acquire()
    offer = site.offer(lease)
    rejected(desk, offer.model_copy(update={"run": "9" * 32}), f"run {'9' * 32}, this central serv")
    rejected(desk, offer.model_copy(update={"replica": "s/z"}), "of s/z is unknown")
    rejected(desk, offer.model_copy(update={"incarnation": "9" * 32}), "unknown or was replaced")
    assert desk.books.verdicts("s/a") == ()
    assert desk.books.receive(offer) is None


def test_a_lease_of_another_or_with_another_span_is_no_base(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    lease = a.acquire()
    rejected(desk, b.offer(lease), "lease 1 is not s/b's")
    assert desk.coverage() == (0, 3, 17), "the holder keeps it"
    wider = Leased(lease=lease.id, span=Span(0, 4))
    rejected(desk, a.offer(lease, spans=(wider,)), "holds [0, 3), the delta names [0, 4)")
    assert desk.coverage() == (0, 0, 20)


def test_a_regranted_lease_takes_the_whole_delta_down(desk) -> None:
    a = desk.site("s/a")
    lost, held = a.acquire(ttl_s=5.0), a.acquire()
    desk.clock.advance(6.0)
    taken = desk.site("s/b").acquire()
    assert taken.span == lost.span
    rejected(desk, a.offer(lost, held), "lease 1 is not s/a's")
    assert desk.coverage() == (0, 3, 17), "what is still his returns, the other's stays"


def test_expired_but_not_regranted_is_still_his(desk) -> None:
    site = desk.site()
    lease = site.acquire(ttl_s=5.0)
    desk.clock.advance(6.0)
    desk.books.tick()
    desk.merge(site.deliver(lease))
    assert desk.coverage() == (3, 0, 17)


def test_a_member_that_is_gone_or_left_may_still_deliver(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    leases = [a.acquire(), b.acquire()]
    a.leave(leases[0].id)
    desk.clock.advance(10.0)
    desk.books.tick()
    desk.merge(a.deliver(leases[0]), b.deliver(leases[1]))
    assert desk.coverage() == (6, 0, 14)


def test_staleness_is_fixed_at_receipt(desk) -> None:
    slow, fast = desk.site("s/slow"), desk.site("s/fast")
    mine, late = slow.acquire(1), slow.acquire(1)
    fast.contribute()
    fast.contribute()
    offer = slow.deliver(mine, base_round=0)
    fast.contribute()
    (staged,) = desk.books.staged()
    assert (staged.staleness, desk.books.round) == (2, 3)
    rejected(
        desk,
        slow.offer(late, base_round=0, prev=offer.delta),
        "staleness 3 exceeds the window of 2 rounds (from round 0, now 3)",
    )
    desk.restart()
    assert desk.books.staged()[0].staleness == 2
    desk.merge(offer)


def test_prev_is_the_last_merged_or_the_pending_one(desk) -> None:
    site = desk.site()
    first = site.contribute()
    rejected(desk, site.offer(site.acquire(), prev=""), f"this replica's last one is {first.delta}")
    second = site.deliver(site.acquire(), prev=first.delta)
    rejected(desk, site.offer(site.acquire(), prev=first.delta), "encoded after")
    third = site.deliver(site.acquire(), prev=second.delta)
    with pytest.raises(LeaseError, match=f"encoded on {second.delta}, which this merge leaves out"):
        desk.merge(third)
    desk.merge(third, second)  # in any order
    site.deliver(site.acquire(), prev=third.delta)


def test_a_rejection_takes_the_chain_with_it(desk) -> None:
    site = desk.site()
    first = site.deliver(site.acquire())
    second = site.deliver(site.acquire(), prev=first.delta)
    verdict = desk.books.reject(first.delta, "nan in layer 3")
    assert (verdict.outcome, verdict.reason) == ("rejected", "nan in layer 3")
    assert desk.books.reject(first.delta, "again") == verdict
    assert f"encoded on {first.delta}, which was rejected" in desk.books.receive(second).reason
    assert desk.coverage() == (0, 0, 20)
    assert desk.books.round == 0


def test_a_site_that_lost_its_disk_goes_on_under_its_name(desk) -> None:
    old = desk.site()
    old.contribute()
    desk.clock.advance(10.0)
    new = desk.site()
    fresh = new.deliver(new.acquire())
    assert fresh.prev == ""
    desk.merge(fresh)
    rejected(desk, new.offer(new.acquire()), "encoded after no delta")


def test_only_pending_deltas_are_decided(desk) -> None:
    site = desk.site()
    merged = site.contribute()
    with pytest.raises(LeaseError, match=f"delta {merged.delta} is merged; only a pending"):
        desk.books.reject(merged.delta, "late")
    with pytest.raises(LeaseError, match=f"delta {'9' * 32} is unknown; only a pending"):
        desk.books.reject("9" * 32, "late")
    with pytest.raises(LeaseError, match="has no verdict pending; merge what is staged"):
        desk.merge(merged)


def test_a_merge_that_does_not_follow_changes_nothing(desk, make_desk) -> None:
    site = desk.site()
    offer = site.deliver(site.acquire())
    report = desk.report("s/a")
    with pytest.raises(LeaseError, match="round 1 merges nothing"):
        desk.merge()
    with pytest.raises(LeaseError, match="the report is of round 5, the next round is 1"):
        desk.books.close_round(
            merged=[offer.delta], generation="g", state_hash="0" * 64,
            report=report.model_copy(update={"round": 5}),
        )  # fmt: skip
    assert desk.books.round == 0
    assert len(desk.books.staged()) == 1
    bare = make_desk(seeded=False)
    other = bare.site()
    delta = other.offer(other.acquire())
    verdict = bare.books.receive(delta)
    assert verdict is not None
    assert "it starts from another theta of round 0" in verdict.reason
    with pytest.raises(LeaseError, match=r"no theta\(0\) to merge into"):
        bare.merge(delta)


def test_the_first_seed_wins(make_desk) -> None:
    desk = make_desk(seeded=False)
    assert desk.books.generation == ""
    for _ in range(2):
        desk.books.seed(generation="round-000000", state_hash="0" * 64)
    with pytest.raises(LeaseError, match=r"theta\(0\) is 0+ already, not 6+"):
        desk.books.seed(generation="x", state_hash="6" * 64)
    assert (desk.books.generation, desk.books.round) == ("round-000000", 0)
    assert desk.books.report() is None
    site = desk.site()
    site.contribute()
    desk.books.seed(generation="round-000000", state_hash="0" * 64)
    assert desk.books.generation == "round-000001"


def test_the_last_eight_verdicts_are_told_oldest_first(desk) -> None:
    site = desk.site()
    offers = [site.contribute(1) for _ in range(10)]
    told = desk.books.verdicts("s/a")
    assert [verdict.delta for verdict in told] == [offer.delta for offer in offers[2:]]
    assert desk.books.verdicts("s/b") == ()


def test_a_delta_from_another_theta_of_its_round_is_rejected(desk) -> None:
    """Two histories with one run id and one round number: a state folder came from a copy."""
    site = desk.site()
    site.contribute(2)
    offer = site.offer(site.acquire(3), base_hash="e" * 64)
    verdict = desk.books.receive(offer)
    assert verdict is not None
    assert "it starts from another theta of round 1 (eeeeeeeeeeee) than this" in verdict.reason
    assert "restored from an old copy" in verdict.reason
    assert desk.coverage() == (2, 0, 18)
