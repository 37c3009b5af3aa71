"""Who may join: runs, spaces, models, twins and takeovers."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pww.central.coordinator import Coordinator, Member
from pww.central.ledger import Ledger
from pww.clock import ManualClock
from pww.errors import Refused, StateError
from pww.wire import PROTOCOL, Release


def refused(call, code: str, text: str) -> Refused:
    with pytest.raises(Refused, match=text) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def test_the_first_registrant_learns_the_run(desk) -> None:
    site = desk.site()
    assert site.registered.run == desk.books.run
    assert site.registered.aggregator_port == 29511
    assert (site.registered.heartbeat_s, site.registered.detect_s) == (3.0, 10.0)
    assert desk.gate.seen == [("joined", site.incarnation)]
    assert [m.replica for m in desk.books.live()] == ["s/a"]
    assert desk.books.live()[0].node_key.startswith("-----BEGIN PUBLIC KEY-----")


def test_another_space_is_refused_with_both_values(desk) -> None:
    other = replace(desk.space, corpus="d" * 64, block_windows=8)
    why = refused(lambda: desk.site(space=other.info()), "wrong_space", "use the same data")
    assert f"corpus: site {'d' * 64}, central {'c' * 64}" in str(why)
    assert "block_windows: site 8, central 4" in str(why)
    assert "seed" not in str(why)
    assert desk.books.live() == ()


CURVE = ec.generate_private_key(ec.SECP256R1()).public_key()
OTHER_KEYS = [
    "hello",
    "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    CURVE.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
]


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_a_process_without_a_usable_key_takes_no_seat(desk, key: str) -> None:
    refused(lambda: desk.site(node_key=key), "bad_request", "no PEM public key on the curve P-384")
    assert desk.books.live() == ()
    assert desk.ledger.rows("SELECT * FROM members") == []
    desk.restart()
    assert desk.gate.seen == []
    desk.site(node_key="")  # trains alone


class Refusing:
    """Members of whom one cannot be let in, nor out."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.told: list[str] = []

    def joined(self, member: Member) -> None:
        self.told.append(member.replica)
        if member.replica == self.replica:
            raise Refused("its key was withdrawn", code="unknown_incarnation")

    left = joined


def test_the_fault_of_one_member_is_logged_and_nobody_else_pays(desk, caplog) -> None:
    """Neither the caller whose thread tells the news nor a restart of the central."""
    first = desk.site("s/a")
    desk.make_gate = lambda: Refusing("s/a")
    desk.restart()
    assert desk.gate.told == ["s/a"]
    assert "s/a cannot take part: its key was withdrawn" in caplog.text
    first.leave()
    desk.site("s/b")
    assert "s/a cannot be let go of: its key was withdrawn" in caplog.text
    assert desk.gate.told == ["s/a", "s/a", "s/b"]
    assert [member.replica for member in desk.books.live()] == ["s/b"]


def test_the_first_model_binds(desk) -> None:
    desk.site("s/a")
    why = refused(
        lambda: desk.site("s/b", model="f" * 64), "wrong_model", "the same model.* everywhere"
    )
    assert "f" * 64 in str(why)
    assert "a" * 64 in str(why)
    desk.restart()
    refused(lambda: desk.site("s/b", model="f" * 64), "wrong_model", "another model")


def test_another_architecture_of_the_same_shapes_is_refused(make_desk) -> None:
    desk = make_desk("told", architecture="c" * 64)
    desk.site("s/a", architecture="c" * 64)
    desk.site("s/b")  # one that does not say
    refused(
        lambda: desk.site("s/c", architecture="d" * 64), "wrong_model",
        "model.* of the site differs from the central's; start both with the same model=...",
    )  # fmt: skip


def test_another_protocol_is_refused(desk) -> None:
    text = f"protocol 9 at the site, {PROTOCOL} at the cent"
    refused(lambda: desk.site(protocol=9), "bad_request", text)


def test_a_checkpoint_of_another_run_is_refused(desk) -> None:
    why = refused(lambda: desk.site(run="9" * 32), "wrong_run", "start with a new run.name")
    assert f"serves run {desk.books.run}, your checkpoint belongs to run {'9' * 32}" in str(why)


def test_a_central_that_lost_its_state_is_behind(desk) -> None:
    desk.site().contribute()
    desk.site("s/b", run=desk.books.run, last_round=1)
    refused(
        lambda: desk.site("s/c", run=desk.books.run, last_round=2),
        "wrong_run",
        "central is behind: its state was lost",
    )


def test_an_empty_central_refuses_a_site_of_an_older_run(desk, make_desk) -> None:
    old_run = desk.books.run
    fresh = make_desk()
    fresh.token()
    fresh.ledger.close()
    (fresh.folder / "ledger.sqlite").unlink()
    fresh.open()
    assert fresh.books.run != old_run
    refused(lambda: fresh.site(run=old_run, last_round=3), "wrong_run", "this central serves run")


def test_a_ledger_of_another_space_is_refused(desk) -> None:
    desk.ledger.close()
    desk.space = replace(desk.space, seed=2)
    with pytest.raises(StateError, match=r"seed: ledger 1, now 2\): go on"):
        desk.open()
    desk.ledger.close()
    desk.space = replace(desk.space, seed=1)
    desk.open()


def test_runs_have_random_ids(tmp_path, desk) -> None:
    runs = set()
    for i in range(3):
        ledger = Ledger(tmp_path / f"{i}.sqlite")
        books = Coordinator(
            ledger, desk.space, darl=desk.darl, aggregator_port=0, clock=ManualClock()
        )
        runs.add(books.run)
        ledger.close()
    assert len(runs) == 3


def test_a_twin_is_refused_while_the_first_lives(desk) -> None:
    first = desk.site()
    desk.clock.advance(4.0)
    why = refused(
        lambda: desk.site(), "replica_taken", "give this process its own id with replica="
    )
    assert why.retry_after_s == pytest.approx(6.0)
    desk.clock.advance(5.0)
    first.beat()
    desk.clock.advance(6.0)
    refused(lambda: desk.site(), "replica_taken", "heard 6.0 s ago")
    desk.site("s/b")


def test_a_dead_twin_is_replaced_for_good(desk) -> None:
    old = desk.site()
    lease = old.acquire()
    desk.clock.advance(10.0)
    new = desk.site()
    assert desk.gate.seen[-2:] == [("left", old.incarnation), ("joined", new.incarnation)]
    assert desk.coverage() == (0, 0, 20), "an unclaimed lease is released"
    for call in (
        lambda: old.beat(lease.id),
        lambda: old.acquire(),
        lambda: old.leave(),
        lambda: old.register(),
        lambda: desk.books.release(
            Release(replica="s/a", incarnation=old.incarnation, leases=(lease.id,))
        ),
    ):
        refused(call, "unknown_incarnation", "start .*again|start it again")
    verdict = desk.books.receive(old.offer(lease))
    assert verdict is not None
    assert (verdict.outcome, "was replaced" in verdict.reason) == ("rejected", True)
    new.leave()
    refused(lambda: old.register(), "unknown_incarnation", "was replaced by a newer process")


def test_an_incarnation_belongs_to_one_replica(desk) -> None:
    site = desk.site()
    site.replica = "s/b"
    refused(lambda: site.register(), "unknown_incarnation", "belongs to another one")


def test_claimed_leases_keep_their_id(desk) -> None:
    old = desk.site()
    kept, dropped = old.acquire(), old.acquire()
    desk.clock.advance(10.0)
    new = desk.site(leases=(kept.id, 77))
    (lease,) = new.registered.leases
    assert (lease.id, lease.span, lease.ttl_s) == (kept.id, kept.span, 30.0)
    assert desk.coverage() == (0, 3, 17)
    answer = new.beat(kept.id, dropped.id).leases
    assert [state.valid for state in answer] == [True, False]


def test_a_claimed_lease_that_expired_comes_back(desk) -> None:
    old = desk.site()
    lease = old.acquire(ttl_s=5.0)
    desk.clock.advance(20.0)
    desk.books.tick()
    assert desk.coverage() == (0, 0, 20)
    assert desk.site(leases=(lease.id,)).registered.leases[0].span == lease.span
    assert desk.coverage() == (0, 3, 17)


def test_takeover_voids_what_is_not_presented(desk) -> None:
    old = desk.site()
    old.contribute()
    shown = old.deliver(old.acquire())
    old.prev = shown.delta
    hidden_lease, hidden_kept = old.acquire(), old.acquire()
    hidden = old.deliver(hidden_lease, hidden_kept)
    old.prev = hidden.delta
    child = old.deliver(old.acquire())
    desk.clock.advance(10.0)
    new = desk.site(deltas=(shown.delta,), leases=(hidden_kept.id,))
    assert [staged.offer.delta for staged in desk.books.staged()] == [shown.delta]
    fates = {verdict.delta: verdict for verdict in desk.books.verdicts("s/a")}
    assert fates[hidden.delta].reason == "replaced by a new incarnation, which does not present it"
    assert "was encoded on" in fates[child.delta].reason
    assert new.beat(hidden_lease.id, hidden_kept.id).leases[1].valid
    assert desk.coverage() == (3, 6, 11)
    # the new process may send the presented one again, under its own name
    again = shown.model_copy(update={"incarnation": new.incarnation})
    assert desk.books.receive(again) is None
    desk.merge(shown)
    assert desk.books.receive(again).outcome == "merged"


def test_registering_again_changes_nothing(desk) -> None:
    site = desk.site()
    lease = site.acquire()
    offer = site.deliver(site.acquire())
    assert site.register().leases == ()
    assert site.register(leases=(lease.id,)).leases[0].id == lease.id
    assert desk.coverage() == (0, 6, 14)
    assert [staged.offer for staged in desk.books.staged()] == [offer]
    assert desk.gate.open == {site.incarnation}


def test_goodbye_returns_all_but_the_kept(desk) -> None:
    site = desk.site()
    kept, given = site.acquire(), site.acquire()
    sent = site.deliver(site.acquire())
    site.leave(kept.id)
    site.leave(kept.id)
    assert desk.coverage() == (0, 6, 14)
    assert desk.books.live() == ()
    assert desk.gate.seen == [("joined", site.incarnation), ("left", site.incarnation)]
    refused(lambda: site.beat(), "unknown_incarnation", "said goodbye")
    refused(lambda: site.acquire(), "unknown_incarnation", "said goodbye")
    desk.merge(sent)
    new = desk.site(leases=(kept.id, given.id))  # at once: nobody is waited for
    assert [lease.id for lease in new.registered.leases] == [kept.id]


def test_silence_means_gone_and_a_heartbeat_means_back(desk) -> None:
    site = desk.site()
    lease = site.acquire(ttl_s=100.0)
    assert desk.books.expected() == {"s/a"}
    desk.clock.advance(9.9)
    desk.books.tick()
    assert desk.books.live() != ()
    desk.clock.advance(0.1)
    desk.books.tick()
    desk.books.tick()
    assert (desk.books.live(), desk.books.expected()) == ((), frozenset())
    assert site.beat(lease.id).leases[0].valid, "its lease lives by its own TTL"
    assert [m.incarnation for m in desk.books.live()] == [site.incarnation]
    who = site.incarnation
    assert desk.gate.seen == [("joined", who), ("left", who), ("joined", who)]


def test_evicted_is_gone_at_once(desk) -> None:
    site = desk.site()
    desk.books.evict("s/a")
    desk.books.evict("s/unknown")
    assert desk.books.live() == ()
    assert desk.site().incarnation != site.incarnation


def test_an_unknown_process_is_refused(desk) -> None:
    site = desk.site()
    site.incarnation = "9" * 32
    refused(lambda: site.acquire(), "unknown_incarnation", "is not registered here")
    refused(lambda: site.leave(), "unknown_incarnation", "is not registered here")


@pytest.mark.parametrize(("round_", "there"), [(1, "0" * 63 + "1"), (9, "not there")])
def test_a_site_that_trained_from_another_theta_is_refused(desk, round_, there) -> None:
    first = desk.site("s/a")
    for _ in range(2):
        first.contribute(2)
    run = desk.books.run
    told = f"theta of round {round_} is e{{64}} at s/b, {there} at"
    with pytest.raises(Refused, match=told) as no:
        desk.site("s/b", run=run, last_round=2, theta_round=round_, theta_hash="e" * 64)
    assert no.value.code == "wrong_run"
    assert "restored from an old copy" in str(no.value)
    desk.site("s/b", run=run, last_round=2, theta_round=1, theta_hash=f"{1:064x}")


def test_a_node_key_is_one_live_replicas(desk) -> None:
    first = desk.site("s/a")
    key = desk.books.live()[0].node_key
    with pytest.raises(Refused, match="the node key of s/b is the one of s/a, which is live"):
        desk.site("s/b", node_key=key + "\n")
    assert [m.replica for m in desk.books.live()] == ["s/a"]
    first.leave()
    desk.site("s/b", node_key=key)
