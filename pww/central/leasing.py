"""The lease protocol's five calls (register, acquire, heartbeat, release, leave), and time.

Each may be repeated: a key gets its grant again while that lease is still its replica's, a
registration or goodbye that came before changes nothing. What a reply says is on the disk before
the reply exists; a TTL too, so that a restart takes no lease from a holder that counts on it. A
message asks for a TTL of at most `wire.MAX_TTL_S`, and a span ends where the free positions do.
"""

from collections.abc import Sequence

from pww.central.deltas import Deltas
from pww.central.membership import Announcer
from pww.central.registration import check
from pww.central.roster import Roster
from pww.central.state import State, as_text
from pww.config.schema import Darl
from pww.errors import Refused
from pww.lease.events import Event, Reason
from pww.lease.events import Granted as LeaseGranted
from pww.wire import (
    MAX_TTL_S,
    Acquire,
    Acquired,
    Done,
    Exhausted,
    Granted,
    Heartbeat,
    Instruction,
    Lease,
    LeaseState,
    Leave,
    Register,
    Registered,
    Release,
    Renewal,
    Span,
    Wait,
)

WAIT_S = 1.0
"""How soon a replica that got nothing may ask again."""


class Leasing:
    """The five calls over one state; `announcer` hears of joins and leaves."""

    def __init__(
        self,
        state: State,
        deltas: Deltas,
        announcer: Announcer,
        *,
        darl: Darl,
        aggregator_port: int,
        limit_mb: int,
    ) -> None:
        self._state, self._deltas, self._announcer = state, deltas, announcer
        self._darl, self._port, self._limit_mb = darl, aggregator_port, limit_mb
        self._floor_s = min(darl.ttl_floor_s, MAX_TTL_S)
        self._roster = Roster(state, announcer, detect_s=darl.detect_s)

    def register(self, message: Register, /) -> Registered:
        """Lets a process in; a new incarnation takes over what it claims, the rest is released.

        Raises:
            Refused: see `registration.check`.
        """
        state, table = self._state, self._state.table
        with state.lock:
            check(state, message, detect_s=self._darl.detect_s)
            with state.change() as change:
                if not self._sits(message):
                    self._deltas.void(
                        change,
                        message.replica,
                        presented=message.deltas,
                        claimed=message.leases,
                    )
                    others = {h.id for h in table.leases(message.replica)} - set(message.leases)
                    change.lease(
                        table.decide_return(
                            sorted(others), replica=message.replica, reason="taken over"
                        )
                    )
                change.lease(self._revivable(message.replica, message.leases))
                self._roster.sit(change, message)
                if state.model == "":
                    change.tx.execute("UPDATE run SET model = ?", message.model)
                    change.then(lambda: setattr(state, "model", message.model))
            reply = Registered(
                run=state.run,
                round=state.round,
                aggregator_port=self._port,
                limit_mb=self._limit_mb,
                heartbeat_s=self._darl.heartbeat_s,
                detect_s=self._darl.detect_s,
                leases=self._claimed(message),
            )
        self._announcer.deliver()
        return reply

    def acquire(self, message: Acquire, /) -> Acquired:
        """One lease on the lowest free positions, or wait, or exhausted.

        Repeated: the same lease, unless it expired and its positions went to somebody else.

        Raises:
            Refused: an unknown incarnation, or a key that was used for another request.
        """
        state, table = self._state, self._state.table
        with self._roster.heard(message.replica, message.incarnation):
            self._expire()
            stored = self._stored_reply(message)
            if stored is not None:
                return stored
            events = table.decide_grant(
                message.replica, num_blocks=message.num_blocks, ttl_s=message.ttl_s
            )
            decided = events[-1] if events else None
            if decided is None and table.complete:
                return Acquired(
                    answer=Exhausted(committed=table.committed.total), round=state.round
                )
            if not isinstance(decided, LeaseGranted):
                return Acquired(answer=Wait(retry_after_s=WAIT_S), round=state.round)
            lease = Lease(
                id=decided.lease,
                replica=decided.replica,
                span=Span(decided.start, decided.stop),
                watermark=decided.watermark,
                ttl_s=decided.ttl_s,
            )
            answer = Granted(lease=lease)
            reply = Acquired(answer=answer, round=state.round)
            with state.change() as change:
                change.lease(events)
                change.tx.execute(
                    "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)",
                    message.key,
                    message.incarnation,
                    message.num_blocks,
                    as_text(reply),
                )
            return reply

    def heartbeat(self, message: Heartbeat, /) -> Instruction:
        """Notes that the replica lives, renews its leases, and says which it has lost.

        Raises:
            Refused: an unknown incarnation.
        """
        state = self._state
        with self._roster.heard(message.replica, message.incarnation) as seat:
            seat.windows_per_s = message.windows_per_s
            self._expire()
            self._revive(message.replica, [each.id for each in message.leases])
            self._renew(message.replica, message.leases)
            return Instruction(
                leases=tuple(self._state_of(message.replica, each.id) for each in message.leases),
                round=state.round,
            )

    def release(self, message: Release, /) -> Done:
        """Takes leases back uncommitted; those of a received delta stay until its verdict.

        Raises:
            Refused: an unknown incarnation.
        """
        with self._roster.heard(message.replica, message.incarnation):
            self._give_back(message.replica, message.leases, "released")
        return Done()

    def leave(self, message: Leave, /) -> Done:
        """Goodbye; leases in `keep` and those of received deltas stay, the others return now.

        Raises:
            Refused: an incarnation that was replaced or never registered.
        """
        with self._state.lock:
            seat = self._roster.seat_of(message.replica, message.incarnation)
            held = {held.id for held in self._state.table.leases(message.replica)}
            self._give_back(message.replica, sorted(held - set(message.keep)), "left")
            self._roster.dismiss(seat, "left")
        self._announcer.deliver()
        return Done()

    def tick(self) -> None:
        """Expires leases and marks silent members gone; call it about every second."""
        with self._state.lock:
            self._expire()
            self._roster.listen()
        self._announcer.deliver()

    def evict(self, replica: str) -> None:
        """Marks the replica's member gone, however recently it was heard."""
        with self._state.lock:
            seat = self._state.seats.get(replica)
            if seat is not None:
                self._roster.dismiss(seat, "gone")
        self._announcer.deliver()

    def _sits(self, message: Register) -> bool:
        seat = self._state.seats.get(message.replica)
        return seat is not None and seat.member.incarnation == message.incarnation

    def _stored_reply(self, message: Acquire) -> Acquired | None:
        """The grant that this key got before, if it still holds: its reply was lost on the way."""
        rows = self._state.ledger.rows(
            "SELECT incarnation, num_blocks, reply FROM replies WHERE key = ?", message.key
        )
        if not rows:
            return None
        if rows[0][:2] != (message.incarnation, message.num_blocks):
            raise Refused(
                f"key {message.key} was used for another request: make a new one for each",
                code="bad_request",
            )
        reply = Acquired.model_validate_json(str(rows[0][2]))
        assert isinstance(reply.answer, Granted), "nothing else is stored"
        lease = reply.answer.lease.id
        self._revive(message.replica, (lease,))
        if self._state.table.find(lease, replica=message.replica) is None:
            return None
        return reply.model_copy(update={"round": self._state.round})

    def _expire(self) -> None:
        events = self._state.table.decide_expiry(self._state.clock.monotonic())
        if events:
            with self._state.change() as change:
                change.lease(events)

    def _give_back(self, replica: str, leases: Sequence[int], reason: Reason) -> None:
        events = self._state.table.decide_return(leases, replica=replica, reason=reason)
        if events:
            with self._state.change() as change:
                change.lease(events)

    def _revivable(self, replica: str, leases: Sequence[int]) -> tuple[Event, ...]:
        return self._state.table.decide_revive(leases, replica=replica, ttl_s=self._floor_s)

    def _revive(self, replica: str, leases: Sequence[int]) -> None:
        events = self._revivable(replica, leases)
        if events:
            with self._state.change() as change:
                change.lease(events)

    def _renew(self, replica: str, renewals: Sequence[Renewal]) -> None:
        """Extends those leases that are this replica's; what that promises is durable first."""
        table, now_s = self._state.table, self._state.clock.monotonic()
        asked: dict[int, float] = {}
        for each in renewals:
            if table.find(each.id, replica=replica) is not None:
                asked[each.id] = max(each.ttl_s, asked.get(each.id, 0.0))
        promises = [
            e for id_, ttl_s in asked.items() for e in table.decide_promise(id_, ttl_s=ttl_s)
        ]
        if promises:
            with self._state.change() as change:
                change.lease(promises)
        for id_, ttl_s in asked.items():
            table.renew(id_, ttl_s=ttl_s, now_s=now_s)

    def _state_of(self, replica: str, lease: int) -> LeaseState:
        """The live lease, if it is this replica's; otherwise that it is lost."""
        held = self._state.table.find(lease, replica=replica)
        if held is None:
            return LeaseState(id=lease, valid=False, stop=0, watermark=0)
        return LeaseState(id=held.id, valid=True, stop=held.span.stop, watermark=held.watermark)

    def _claimed(self, message: Register) -> tuple[Lease, ...]:
        """The leases of a registration that are its own, with a fresh time to live."""
        ttl_s, replica = self._floor_s, message.replica
        leases = tuple(dict.fromkeys(message.leases))
        self._renew(replica, [Renewal(id=lease, ttl_s=ttl_s) for lease in leases])
        found = (self._state.table.find(lease, replica=replica) for lease in leases)
        return tuple(
            Lease(
                id=held.id,
                replica=held.replica,
                span=held.span,
                watermark=held.watermark,
                ttl_s=ttl_s,
            )
            for held in found
            if held is not None
        )
