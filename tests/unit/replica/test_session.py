"""The session against the real coordinator in process, with a network that a test can cut."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.config.schema import Darl
from pww.errors import CentralError, Refused, Stopped, Unreachable
from pww.lease.space import BlockSpace
from pww.replica.session import Claims, Session
from pww.wire import (
    Acquire,
    Heartbeat,
    Lease,
    Leased,
    Leave,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    Register,
    Release,
    RoundReport,
)

DARL = Darl(
    block_windows=4, seed=1, epochs=1, ttl_floor_s=30.0, heartbeat_s=3.0, detect_s=10.0,
    restore_grace_s=60.0, ahead=False, max_attempts=0,
)  # fmt: skip
SPACE = BlockSpace(
    num_windows=80, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
)


@cache
def key_of(replica: str) -> str:
    """The public key of a replica's node."""
    del replica  # one key each
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


KEY = key_of("s/a")


class SiteClock:
    """Waiting for `stop` moves time; any other wait (the heartbeat's) blocks until time moved."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._now_s = stop, 100.0
        self._moved = threading.Condition()
        self.on_wait: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self._now_s

    def wall(self) -> float:
        return 1e9 + self._now_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if event is self._stop:
            if not event.is_set():
                self.advance(timeout_s)
                self.on_wait()
            return event.is_set()
        until_s = self._now_s + timeout_s
        with self._moved:
            while not event.is_set() and self._now_s < until_s:
                self._moved.wait(0.01)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        with self._moved:
            self._now_s += seconds
            self._moved.notify_all()


class Wire:
    """The coordinator behind a network that can lose requests and replies."""

    def __init__(self, books: Coordinator) -> None:
        self.books = books
        self.sent: list[object] = []
        self.lose_requests = self.lose_replies = 0
        self.rtt_s = 0.0
        self.clock: SiteClock | None = None
        self.block = threading.Event()
        self.block.set()

    def _carry(self, message, call):
        self.block.wait(30)
        self.sent.append(message)
        if self.lose_requests:
            self.lose_requests -= 1
            raise Unreachable("no route to http://central")
        if self.clock is not None:
            self.clock.advance(self.rtt_s)
        reply = call(message)
        if self.lose_replies:
            self.lose_replies -= 1
            raise Unreachable("connection reset")
        return reply

    def register(self, message: Register, /):
        return self._carry(message, self.books.register)

    def acquire(self, message: Acquire, /):
        return self._carry(message, self.books.acquire)

    def heartbeat(self, message: Heartbeat, /):
        return self._carry(message, self.books.heartbeat)

    def release(self, message: Release, /):
        return self._carry(message, self.books.release)

    def leave(self, message: Leave, /):
        return self._carry(message, self.books.leave)

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]


class World:
    def __init__(self, folder: Path) -> None:
        self.stop = threading.Event()
        self.clock = SiteClock(self.stop)
        self.folder, self.darl = folder, DARL
        self.sessions: list[Session] = []
        self.open()
        self.books.seed(generation="g0", state_hash="0" * 64)

    def open(self) -> None:
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.books = Coordinator(self.ledger, SPACE, darl=DARL, aggregator_port=1, clock=self.clock)

    def restart(self) -> None:
        """A new process of the central."""
        self.ledger.close()
        self.open()

    def merge(self, session: Session, lease: Lease, *, number: int) -> None:
        """Round `number`: the delta of one lease, the first of its replica or after the last."""
        tokens = SPACE.num_span_windows(lease.span) * 8
        replica, delta = lease.replica, f"{number:032x}"
        offer = Offer(
            run=session.run, replica=replica, incarnation=session.incarnation, delta=delta,
            prev=f"{number - 1:032x}" if number > 1 else "", base_round=number - 1,
            base_hash=f"{number - 1:064x}",
            spans=(Leased(lease=lease.id, span=lease.span),), tokens=tokens, partial=False,
            finite=True, payload=PayloadInfo(codec="fp32", size_bytes=1, digest="b" * 64),
            metrics=PhaseMetrics(
                steps=1, tokens=tokens, loss=1.0, phase_seconds=1.0, tokens_per_s=1.0
            ),
        )  # fmt: skip
        report = RoundReport(
            round=number, merged=(replica,), rejected=(), tokens=tokens, loss=1.0, delta_norm=1.0,
            avg_delta_norm=1.0, agreement=1.0, drift_mean=0.0, drift_max=0.0, bytes_received=1,
            merge_seconds=0.0,
        )  # fmt: skip
        assert self.books.receive(offer) is None
        self.books.close_round(
            merged=[delta], generation=f"g{number}", state_hash=f"{number:064x}", report=report
        )

    def session(
        self, replica: str = "s/a", *, claims: Claims = Claims(), model: str = "a" * 64
    ) -> tuple[Session, Wire]:
        wire = Wire(self.books)
        session = Session(
            wire, replica=replica, node_key=key_of(replica), space=SPACE, model=model,
            darl=self.darl,
            clock=self.clock, stop=self.stop, versions={"torch": "2.13"}, claims=claims,
        )  # fmt: skip
        self.sessions.append(session)
        return session, wire

    def joined(
        self, replica: str = "s/a", *, beating: bool = False, **more
    ) -> tuple[Session, Wire]:
        """Registered; its heartbeats go out when a test calls `beat`, unless it is `beating`."""
        session, wire = self.session(replica, **more)
        session.register()
        if not beating:
            session._over.set()
            session._thread.join(30)
            session._over.clear()
        return session, wire


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for session in world.sessions:
        session.leave()
    world.ledger.close()


def until(condition: Callable[[], bool]) -> None:
    """Real waiting for another thread, with a limit."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def test_joins_and_tells_who_it_is(world: World) -> None:
    session, wire = world.joined()
    (message,) = wire.of(Register)
    assert session.run == world.books.run
    assert (message.incarnation, message.node_key) == (session.incarnation, KEY)
    assert (message.space, message.versions) == (SPACE.info(), {"torch": "2.13"})
    assert len(session.incarnation) == 32
    assert world.session()[0].incarnation != session.incarnation


def test_acquires_until_nothing_is_left(world: World) -> None:
    session, _ = world.joined()
    granted = session.acquire(7)
    assert granted is not None
    assert session.holds(granted.id)
    sizes = [len(session.acquire(7).span) for _ in range(2)]
    assert sizes == [7, 6]


def test_none_when_all_is_committed(world: World) -> None:
    session, _ = world.joined()
    lease = session.acquire(20)
    world.merge(session, lease, number=1)
    assert session.round == 0
    assert session.acquire(1) is None
    assert session.round == 1, "the last theta is the one to end with"
    session.beat()
    assert not session.holds(lease.id)


def test_without_waiting_there_is_a_lease_at_once_or_none(world: World) -> None:
    session, _ = world.joined()
    world.clock.on_wait = lambda: pytest.fail("it waits")
    lease = session.acquire(20, wait=False)
    assert lease is not None
    assert len(lease.span) == 20
    assert session.acquire(1, wait=False) is None, "the rest is on its way"
    world.merge(session, lease, number=1)
    assert session.acquire(1, wait=False) is None
    assert session.round == 1
    assert session.acquire(1) is None


def test_a_lost_reply_is_asked_again_with_the_same_key(world: World, caplog) -> None:
    session, wire = world.joined()
    wire.lose_replies = 2
    with caplog.at_level(logging.WARNING):
        granted = session.acquire(3)
    assert granted is not None
    assert len({message.key for message in wire.of(Acquire)}) == 1
    assert len(wire.of(Acquire)) == 3
    assert world.books.status()["coverage"]["leased"] == 3
    assert "no answer for 3 s, trying on: connection reset" in caplog.text
    session.acquire(3)
    assert len({message.key for message in wire.of(Acquire)}) == 2


def test_a_lease_lives_for_its_ttl_from_the_first_sending(world: World) -> None:
    """The same law with lost replies, slow ones, and a central that restarts in between."""
    session, wire = world.joined()
    wire.clock, wire.rtt_s, wire.lose_replies = world.clock, 2.0, 2
    session.measured(phase_s=100.0, windows_per_s=1.0)
    sent_s = world.clock.monotonic()
    session.acquire(3)
    world.restart()
    wire.books = world.books
    while world.clock.monotonic() < sent_s + 250.0:
        world.books.tick()
        assert world.books.status()["coverage"]["leased"] == 3
        world.clock.advance(0.5)


def test_round_is_the_newest_after_each_answer_to_acquire(world: World) -> None:
    """Granted and waiting; a theta that is pulled next is at least as new."""
    session, _ = world.joined()
    other, _ = world.joined("s/b")
    for n, blocks in enumerate((10, 5)):
        world.merge(other, other.acquire(blocks), number=n + 1)
    session.acquire(5)
    assert session.round == 2
    world.clock.on_wait = world.stop.set
    world.books._state.round = 3
    with pytest.raises(Stopped):
        session.acquire(1)
    assert session.round == 3


def test_waits_visibly_and_can_be_stopped(world: World, caplog) -> None:
    holder, _ = world.joined("s/b")
    holder.acquire(20)
    session, wire = world.joined()
    started_s = world.clock.monotonic()

    def stop_after_25_s() -> None:
        session.beat()
        holder.beat()
        if world.clock.monotonic() - started_s >= 25:
            world.stop.set()

    world.clock.on_wait = stop_after_25_s
    with (
        caplog.at_level(logging.INFO, logger="pww.replica"),
        pytest.raises(Stopped, match="stopped while waiting for a lease"),
    ):
        session.acquire(1)
    said = [r for r in caplog.records if "no block is free" in r.getMessage()]
    assert 3 <= len(said) <= 4, "at once and about every ten seconds"
    assert len(wire.of(Acquire)) >= 20, "about every second"
    with pytest.raises(Stopped, match="stopped while asking for leases"):
        session.acquire(1)


def test_gets_what_another_gives_back(world: World) -> None:
    holder, _ = world.joined("s/b")
    given = holder.acquire(20)
    session, _ = world.joined()
    world.clock.on_wait = lambda: holder.leave()
    assert session.acquire(20).span == given.span


def test_the_central_may_be_away_at_the_start(world: World, caplog) -> None:
    session, wire = world.session()
    wire.lose_requests = 5
    with caplog.at_level(logging.WARNING):
        session.register()
    assert "no answer for 12 s, trying on: no route to http://central" in caplog.text
    assert session.run == world.books.run


def test_stopped_while_the_central_is_away(world: World) -> None:
    session, wire = world.session()
    wire.lose_requests = 10**9
    world.clock.on_wait = world.stop.set
    with pytest.raises(Stopped, match="nothing durable was lost"):
        session.register()
    session.leave()
    assert wire.of(Leave) == [], "nobody to say goodbye to"


def test_heartbeats_go_out_by_themselves(world: World) -> None:
    session, wire = world.joined(beating=True)
    lease = session.acquire(3).id
    session.measured(phase_s=0.0, windows_per_s=12.5)
    for beats in range(1, 30):
        world.clock.advance(3.0)
        until(lambda n=beats: len(wire.of(Heartbeat)) >= n)
    world.books.tick()
    assert world.books.status()["coverage"]["leased"] == 3, "87 s later, with a TTL of 30 s"
    assert world.books.status()["members"][0]["windows_per_s"] == 12.5
    assert session.holds(lease)


def test_the_ttl_follows_what_was_measured(world: World) -> None:
    session, wire = world.joined()
    session.acquire(1)
    assert wire.of(Acquire)[-1].ttl_s == 30.0
    wire.clock, wire.rtt_s = world.clock, 0.5
    session.beat()
    session.measured(phase_s=100.0, windows_per_s=1.0)
    session.beat()
    assert wire.of(Heartbeat)[-1].leases[0].ttl_s == pytest.approx(2.5 * 100 + 10 * 0.5)


def test_an_outage_is_no_round_trip(world: World) -> None:
    """The port repeats a call: a heartbeat that took 55 s says nothing about the link."""
    session, wire = world.joined()
    session.acquire(1)
    wire.clock, wire.rtt_s = world.clock, 55.0
    session.beat()
    wire.rtt_s = 0.0
    session.beat()
    assert wire.of(Heartbeat)[-1].leases[0].ttl_s == 30.0


def test_a_lost_lease_is_remembered(world: World, caplog) -> None:
    session, _ = world.joined()
    lost, kept = session.acquire(3), session.acquire(3)
    world.books.release(Release(replica="s/a", incarnation=session.incarnation, leases=(lost.id,)))
    with caplog.at_level(logging.DEBUG, logger="pww.replica.session"):
        session.beat()
    assert (session.holds(lost.id), session.holds(kept.id)) == (False, True)
    assert f"lease {lost.id} is over" in caplog.text


def test_a_settled_lease_is_not_renewed(world: World) -> None:
    session, wire = world.joined()
    lease = session.acquire(3).id
    session.settle(lease)
    session.settle(lease)
    session.beat()
    assert wire.of(Heartbeat)[-1].leases == ()
    assert not session.holds(lease)


def test_a_heartbeat_that_does_not_arrive_is_said_and_survived(world: World, caplog) -> None:
    session, wire = world.joined()
    lease = session.acquire(3).id
    wire.lose_requests = 1
    with caplog.at_level(logging.WARNING):
        session.beat()
    assert "heartbeat not delivered: no route to http://central" in caplog.text
    assert session.holds(lease)


def test_a_fault_in_a_heartbeat_does_not_end_the_heartbeats(world: World, caplog) -> None:
    session, wire = world.joined(beating=True)
    carry, broken = wire._carry, True

    def sometimes(message, call):
        nonlocal broken
        if broken:
            broken = False
            raise RuntimeError("a bug")
        return carry(message, call)

    def beaten() -> bool:
        world.clock.advance(3.0)  # more than once: the thread may not wait yet
        return not broken

    wire._carry = sometimes
    until(beaten)
    until(lambda: "heartbeat failed; the next one follows" in caplog.text)
    for _ in range(3):
        world.clock.advance(3.0)
    until(lambda: len(wire.of(Heartbeat)) >= 1)
    session.beat()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Stopped("stopped while waiting"), ""),
        (CentralError("http://central answered with HTTP 404"), "heartbeat not delivered: http"),
    ],
)
def test_what_a_person_caused_is_no_traceback(world: World, caplog, fault, said: str) -> None:
    """Ctrl-C while the central is away ends the heartbeats quietly; others are one line each."""
    session, wire = world.joined(beating=True)
    beats: list[object] = []

    def fail(message, call):
        beats.append(message)
        raise fault

    carry, wire._carry = wire._carry, fail
    world.clock.advance(3.0)
    until(lambda: bool(beats))
    if isinstance(fault, Stopped):
        session._thread.join(30)
        assert not session._thread.is_alive()
    else:
        world.clock.advance(3.0)
        until(lambda: len(beats) >= 2)
    wire._carry = carry
    assert "Traceback" not in caplog.text
    assert said in caplog.text if said else not caplog.records


def test_replaced_is_told_at_the_next_acquire(world: World, caplog) -> None:
    session, _ = world.joined()
    lease = session.acquire(3).id
    world.books.evict("s/a")
    world.joined()
    session.beat()
    assert not session.holds(lease)
    assert "the central refuses this process" in caplog.text
    with pytest.raises(Refused, match="replaced by a newer process") as caught:
        session.acquire(1)
    assert caught.value.code == "unknown_incarnation"


def test_a_living_twin_is_refused_after_one_wait(world: World, caplog) -> None:
    first, _ = world.joined()
    world.clock.on_wait = first.beat
    second, wire = world.session()
    started_s = world.clock.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(Refused, match="replica=") as caught:
        second.register()
    assert caught.value.code == "replica_taken"
    assert len(wire.of(Register)) == 2
    assert world.clock.monotonic() - started_s <= DARL.detect_s + DARL.heartbeat_s
    assert "trying once more in" in caplog.text


def test_a_dead_twin_is_taken_over(world: World) -> None:
    dead, _ = world.joined()
    lease = dead.acquire(3)
    claims = Claims(run=world.books.run, last_round=0, leases=(lease.id,))
    session, _ = world.session(claims=claims)
    assert [held.id for held in session.register().leases] == [lease.id]
    assert session.holds(lease.id)


def test_the_tag_of_the_residual_is_told_and_the_last_merged_delta_answered(world: World) -> None:
    session, wire = world.session(claims=Claims(residual="d" * 32))
    session.register()
    (sent,) = wire.of(Register)
    assert sent.residual == "d" * 32
    assert session.registered.last_merged == ""


def test_other_refusals_are_final(world: World) -> None:
    world.joined("s/b")
    session, wire = world.session(model="b" * 64)
    with pytest.raises(Refused, match="another model"):
        session.register()
    assert len(wire.of(Register)) == 1


def test_reregister_keeps_identity_and_leases(world: World) -> None:
    session, wire = world.joined()
    lease = session.acquire(3).id
    world.books.evict("s/a")
    reply = session.reregister()
    assert [held.id for held in reply.leases] == [lease]
    assert wire.of(Register)[-1].run == world.books.run
    assert [m.incarnation for m in world.books.live()] == [session.incarnation]


def test_goodbye_keeps_what_it_is_told_to(world: World) -> None:
    session, _ = world.joined()
    kept, _ = session.acquire(3).id, session.acquire(3).id
    session.leave(keep=[kept])
    (member,) = world.books.status()["members"]
    assert member["state"] == "left"
    assert [held["id"] for held in member["leases"]] == [kept]


def test_goodbye_never_raises_and_never_hangs(world: World, monkeypatch, caplog) -> None:
    session, wire = world.joined()
    wire.lose_requests = 1
    session.leave()
    assert "goodbye not delivered: no route" in caplog.text
    other, wire = world.joined("s/b")
    wire.block.clear()
    monkeypatch.setattr("pww.replica.session.LEAVE_S", 0.2)
    other.leave()
    assert "the central does not answer the goodbye" in caplog.text
    wire.block.set()


def test_a_heartbeat_after_the_goodbye_is_no_alarm(world: World, caplog) -> None:
    session, _ = world.joined()
    session.leave()
    session.beat()
    assert "refuses" not in caplog.text


# ---------------------------------------------------------------------------- the span ahead


@pytest.fixture
def eager(world: World, monkeypatch) -> tuple[Session, Wire]:
    """A session that leases ahead; its heartbeat thread's work is done by `turn`."""
    monkeypatch.setattr(world, "darl", DARL.model_copy(update={"ahead": True}))
    return world.joined()


def turn(session: Session) -> None:
    """What the heartbeat thread does every few seconds."""
    session.beat()
    session._take_ahead()


def test_the_next_span_is_leased_while_a_phase_runs(world: World, eager) -> None:
    session, wire = eager
    turn(session)
    assert wire.of(Acquire) == [], "no phase runs"
    first = session.acquire(4)
    turn(session)
    turn(session)
    asked = wire.of(Acquire)
    assert [(a.ahead, a.num_blocks) for a in asked] == [(False, 4), (True, 4)]
    assert world.books.status()["coverage"]["leased"] == 8
    session.measured(phase_s=20.0, windows_per_s=1.0)
    world.clock.advance(13.0)
    turn(session)
    assert [state["watermark"] for state in leases_of(world)] == [4, 4], "6 s before the end"
    world.clock.advance(1.5)
    turn(session)
    assert [state["watermark"] for state in leases_of(world)] == [4, 8]
    world.merge(session, first, number=1)
    session.settle(first.id)
    sent = len(wire.sent)
    second = session.acquire(4)
    assert (second.span.start, second.span.stop, second.watermark) == (4, 8, 8)
    assert len(wire.sent) == sent, "no phase starts with a wait"
    turn(session)
    assert wire.of(Acquire)[-1].ahead
    assert len(wire.of(Acquire)) == 3


def leases_of(world: World) -> list:
    return world.books.status()["members"][0]["leases"]


def test_a_span_that_was_not_started_in_time_costs_one_heartbeat(world: World, eager) -> None:
    session, wire = eager
    session.acquire(4)
    turn(session)
    sent = len(wire.sent)
    lease = session.acquire(4)
    assert [type(m) for m in wire.sent[sent:]] == [Heartbeat]
    assert lease.watermark == lease.span.stop == 8
    assert session.standing(lease.id) == "draw"


def test_what_another_took_of_it_is_not_trained(world: World, eager) -> None:
    session, _ = eager
    session.acquire(12)
    turn(session)
    thief, _ = world.joined("s/b")
    stolen = thief.acquire(3)
    assert (stolen.span.start, stolen.span.stop) == (17, 20)
    lease = session.acquire(12)
    assert (lease.span.start, lease.span.stop, lease.watermark) == (12, 17, 17)


def test_when_all_of_it_was_taken_another_is_asked_for(world: World, eager) -> None:
    session, _ = eager
    first = session.acquire(12)
    turn(session)
    thief, _ = world.joined("s/b")
    assert len(thief.acquire(8).span) == 8
    world.merge(session, first, number=1)
    session.settle(first.id)
    world.clock.on_wait = lambda: thief.leave()
    assert session.acquire(3).span.start == 12


def test_a_lost_reply_to_a_request_ahead_leases_once(world: World, eager) -> None:
    session, wire = eager
    session.acquire(4)
    session.beat()
    wire.lose_replies = 1
    session._take_ahead()
    session._take_ahead()
    keys = [message.key for message in wire.of(Acquire)]
    assert len(keys) == 3
    assert keys[1] == keys[2]
    assert world.books.status()["coverage"]["leased"] == 8


def test_nothing_is_asked_for_ahead_twice_when_nothing_is_left(world: World, eager) -> None:
    session, wire = eager
    session.acquire(20)
    for _ in range(3):
        turn(session)
    assert len(wire.of(Acquire)) == 2


def test_a_lease_is_not_drawn_from_when_it_may_have_expired(world: World) -> None:
    session, wire = world.joined()
    lease = session.acquire(3)
    assert session.standing(lease.id) == "draw"
    world.clock.advance(20.0)
    wire.lose_replies = 1
    session.beat()  # the central heard it, we did not hear the central
    world.clock.advance(10.0)
    assert session.standing(lease.id) == "pause"
    session.beat()
    assert session.standing(lease.id) == "draw"
    world.clock.advance(40.0)
    other, _ = world.joined("s/b")
    assert other.acquire(3).span == lease.span
    assert session.standing(lease.id) == "pause"
    session.beat()
    assert session.standing(lease.id) == "lost"


def test_the_time_of_a_repeated_request_runs_from_its_first_sending(world: World) -> None:
    session, wire = world.joined()
    wire.lose_replies = 3  # each followed by a wait of one heartbeat interval
    lease = session.acquire(3)
    world.clock.advance(DARL.ttl_floor_s - 3 * DARL.heartbeat_s - 0.1)
    assert session.standing(lease.id) == "draw"
    world.clock.advance(0.1)
    assert session.standing(lease.id) == "pause"


def test_blocks_that_were_set_aside_are_named_at_the_end(world: World, caplog) -> None:
    world.ledger.close()
    world.ledger = Ledger(world.folder / "ledger.sqlite")
    world.books = Coordinator(
        world.ledger, SPACE, darl=DARL.model_copy(update={"max_attempts": 1}), aggregator_port=1,
        clock=world.clock,
    )  # fmt: skip
    poisoned, _ = world.joined("s/poisoned")
    poisoned.acquire(2)
    world.clock.advance(40.0)
    session, _ = world.joined()
    world.merge(session, session.acquire(20), number=1)
    with caplog.at_level(logging.WARNING):
        assert session.acquire(1) is None
    blocks = ", ".join(str(SPACE.block(p)) for p in range(2))
    assert f"2 blocks were set aside after too many attempts: {blocks}" in caplog.text


@pytest.mark.parametrize("how", ["beat", "acquire"])
def test_a_central_that_forgot_rounds_is_not_trained_for(world: World, how: str) -> None:
    session, _ = world.joined()
    saved = world.folder / "copy.sqlite"
    with sqlite3.connect(saved) as copy:
        world.ledger._db.backup(copy)
    copy.close()
    world.merge(session, session.acquire(4), number=1)
    session.beat()
    assert session.round == 1
    world.ledger.close()
    for left in world.folder.glob("ledger.sqlite*"):
        left.unlink()
    saved.rename(world.folder / "ledger.sqlite")
    world.open()
    session._port.books = world.books
    told = "the central is at round 0 of run .*, it was at 1 before: its state folder was replaced"
    with pytest.raises(Refused, match=told):
        session.acquire(4) if how == "acquire" else session.beat() or session.check()
    with pytest.raises(Refused, match=told):
        session.acquire(4)


def test_the_time_of_a_renewal_runs_from_its_sending(world: World) -> None:
    """The central may count from any moment after that; its answer comes later still."""
    session, wire = world.joined()
    lease = session.acquire(3)
    wire.clock, wire.rtt_s = world.clock, 8.0
    session.beat()
    world.clock.advance(DARL.ttl_floor_s - 8.0 - 0.1)
    assert session.standing(lease.id) == "draw"
    world.clock.advance(0.1)
    assert session.standing(lease.id) == "pause"
