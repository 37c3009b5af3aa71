"""The session against the real coordinator in process, with a network that a test can cut."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.config.schema import Darl
from pww.errors import Refused, Stopped, Unreachable
from pww.lease.space import BlockSpace
from pww.replica.session import Claims, Session
from pww.wire import (
    Acquire,
    Heartbeat,
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
    restore_grace_s=60.0,
)  # fmt: skip
SPACE = BlockSpace(
    num_windows=80, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
)


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
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.books = Coordinator(self.ledger, SPACE, darl=DARL, aggregator_port=1, clock=self.clock)
        self.sessions: list[Session] = []

    def session(
        self, replica: str = "s/a", *, claims: Claims = Claims(), model: str = "a" * 64
    ) -> tuple[Session, Wire]:
        wire = Wire(self.books)
        session = Session(
            wire, replica=replica, node_key="pem", space=SPACE, model=model, darl=DARL,
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
    assert (message.incarnation, message.node_key) == (session.incarnation, "pem")
    assert (message.space, message.versions) == (SPACE.info(), {"torch": "2.13"})
    assert len(session.incarnation) == 32
    assert world.session()[0].incarnation != session.incarnation


def test_acquires_until_nothing_is_left(world: World) -> None:
    session, _ = world.joined()
    granted = session.acquire(7)
    assert granted is not None
    assert session.holds(granted.lease.id)
    assert session.may_draw(granted.lease.id)
    sizes = [len(session.acquire(7).lease.span) for _ in range(2)]
    assert sizes == [7, 6]


def test_none_when_all_is_committed(world: World) -> None:
    session, _ = world.joined()
    lease = session.acquire(20).lease
    offer = Offer(
        run=session.run, replica="s/a", incarnation=session.incarnation, delta="d" * 32, prev="",
        base_round=0, spans=(Leased(lease=lease.id, span=lease.span),), tokens=1, partial=False,
        finite=True, payload=PayloadInfo(codec="fp32", size_bytes=1, sha256="b" * 64),
        metrics=PhaseMetrics(steps=1, tokens=1, loss=1.0, phase_seconds=1.0, tokens_per_s=1.0),
    )  # fmt: skip
    report = RoundReport(
        round=1, merged=("s/a",), rejected=(), tokens=1, loss=1.0, delta_norm=1.0,
        avg_delta_norm=1.0, agreement=1.0, drift_mean=0.0, drift_max=0.0, bytes_received=1,
        merge_seconds=0.0,
    )  # fmt: skip
    world.books.seed(generation="g0", state_hash="0" * 64)
    assert world.books.receive(offer) is None
    world.books.close_round(
        merged=[offer.delta], generation="g1", state_hash="1" * 64, report=report
    )
    assert session.acquire(1) is None
    session.beat()
    assert session.round == 1
    assert not session.holds(lease.id)


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


def test_certainty_runs_from_the_first_sending(world: World) -> None:
    """Replies lost for 6 s: 24 of the 30 s are left, however fresh the answer is."""
    session, wire = world.joined()
    wire.lose_replies = 2
    lease = session.acquire(3).lease.id
    world.clock.advance(23.9)
    assert session.may_draw(lease)
    world.clock.advance(0.1)
    assert not session.may_draw(lease)
    assert session.holds(lease), "nobody said that it is lost"
    world.books.tick()
    session.beat()
    assert session.may_draw(lease)


def test_the_coordinator_never_expires_what_the_holder_still_believes(world: World) -> None:
    session, wire = world.joined()
    wire.clock, wire.rtt_s = world.clock, 2.0
    lease = session.acquire(3).lease.id
    for _ in range(100):
        world.clock.advance(0.5)
        believed = session.may_draw(lease)
        world.books.tick()
        if believed:
            assert world.books.status()["coverage"]["leased"] == 3
    assert not believed


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
        caplog.at_level(logging.INFO, logger="pww.replica.session"),
        pytest.raises(Stopped, match="stopped while waiting for the central"),
    ):
        session.acquire(1)
    said = [r for r in caplog.records if "no block is free" in r.getMessage()]
    assert 3 <= len(said) <= 4, "at once and about every ten seconds"
    assert len(wire.of(Acquire)) >= 20, "about every second"
    with pytest.raises(Stopped, match="stopped while asking the central"):
        session.acquire(1)


def test_gets_what_another_gives_back(world: World) -> None:
    holder, _ = world.joined("s/b")
    given = holder.acquire(20)
    session, _ = world.joined()
    world.clock.on_wait = lambda: holder.leave()
    assert session.acquire(20).lease.span == given.lease.span


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
    lease = session.acquire(3).lease.id
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


def test_a_lost_lease_is_remembered(world: World, caplog) -> None:
    session, _ = world.joined()
    lost, kept = session.acquire(3).lease, session.acquire(3).lease
    world.books.release(Release(replica="s/a", incarnation=session.incarnation, leases=(lost.id,)))
    with caplog.at_level(logging.INFO, logger="pww.replica.session"):
        session.beat()
    assert (session.holds(lost.id), session.holds(kept.id)) == (False, True)
    assert f"lease {lost.id} is over" in caplog.text
    assert not session.may_draw(lost.id)


def test_a_settled_lease_is_not_renewed(world: World) -> None:
    session, wire = world.joined()
    lease = session.acquire(3).lease.id
    session.settle(lease)
    session.settle(lease)
    session.beat()
    assert wire.of(Heartbeat)[-1].leases == ()
    assert not session.holds(lease)


def test_a_heartbeat_that_does_not_arrive_is_said_and_survived(world: World, caplog) -> None:
    session, wire = world.joined()
    lease = session.acquire(3).lease.id
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

    wire._carry = sometimes
    world.clock.advance(3.0)
    until(lambda: not broken)
    until(lambda: "heartbeat failed; the next one follows" in caplog.text)
    for _ in range(3):
        world.clock.advance(3.0)
    until(lambda: len(wire.of(Heartbeat)) >= 1)
    session.beat()


def test_replaced_is_told_at_the_next_acquire(world: World, caplog) -> None:
    session, _ = world.joined()
    lease = session.acquire(3).lease.id
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
    lease = dead.acquire(3).lease
    claims = Claims(run=world.books.run, last_round=0, leases=(lease.id,))
    session, _ = world.session(claims=claims)
    assert [held.id for held in session.register().leases] == [lease.id]
    assert session.holds(lease.id)
    assert session.may_draw(lease.id)


def test_other_refusals_are_final(world: World) -> None:
    world.joined("s/b")
    session, wire = world.session(model="b" * 64)
    with pytest.raises(Refused, match="another model"):
        session.register()
    assert len(wire.of(Register)) == 1


def test_reregister_keeps_identity_and_leases(world: World) -> None:
    session, wire = world.joined()
    lease = session.acquire(3).lease.id
    world.books.evict("s/a")
    reply = session.reregister()
    assert [held.id for held in reply.leases] == [lease]
    assert wire.of(Register)[-1].run == world.books.run
    assert [m.incarnation for m in world.books.live()] == [session.incarnation]


def test_goodbye_keeps_what_it_is_told_to(world: World) -> None:
    session, _ = world.joined()
    kept, _ = session.acquire(3).lease.id, session.acquire(3).lease.id
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
