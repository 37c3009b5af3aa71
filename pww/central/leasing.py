"""The lease protocol's five calls (register, acquire, heartbeat, release, leave), and time.

Each may be repeated: a key gets its grant once, a registration or goodbye that came before changes
nothing. Call them inside `State.batch`: what a reply says is on the disk when the batch has ended,
a TTL and a raised watermark too, so that a restart takes nothing from a holder that counts on it.
A message asks for a TTL of at most `wire.MAX_TTL_S`, and a span ends where the free positions do.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from pww.central import sizing, unsent
from pww.central.deltas import Deltas
from pww.central.membership import Announcer
from pww.central.registration import check, check_single
from pww.central.replies import Reply
from pww.central.roster import Roster
from pww.central.state import State
from pww.config.schema import Darl
from pww.errors import Refused
from pww.lease.events import Event, Reason
from pww.lease.events import Granted as GrantedEvent
from pww.lease.held import Held
from pww.wire import (
    MAX_TTL_S,
    Acquire,
    Acquired,
    Call,
    Carriage,
    Done,
    Exhausted,
    Granted,
    Heartbeat,
    Instruction,
    Lease,
    LeaseState,
    Leave,
    Message,
    Register,
    Registered,
    Release,
    Renewal,
    Wait,
)

WAIT_S = 1.0
"""How soon a replica that got nothing may ask again."""
TICK_S = 2.0


class Leasing:
    """The five calls over one state; `announcer` hears of joins and leaves."""

    def __init__(
        self,
        state: State,
        deltas: Deltas,
        announcer: Announcer,
        *,
        darl: Darl,
        balanced: bool,
        aggregator_port: int,
        limit_mb: int,
        carriage: Carriage | None,
        architecture: str,
        merges: Callable[[], bool],
    ) -> None:
        self._state, self._deltas, self._merges = state, deltas, merges
        self._darl, self._balanced = darl, balanced
        self._port, self._limit_mb, self._carriage = aggregator_port, limit_mb, carriage
        self._architecture = architecture
        self._ticked_s = state.clock.monotonic()
        self._floor_s = min(darl.ttl_floor_s, MAX_TTL_S)
        self._roster = Roster(state, announcer, detect_s=darl.detect_s)

    def answer(self, message: Call, /) -> Message:
        """The reply to any of the five; raises as they do."""
        match message:
            case Acquire():
                return self.acquire(message)
            case Heartbeat():
                return self.heartbeat(message)
            case Register():
                return self.register(message)
            case Release():
                return self.release(message)
            case Leave():
                return self.leave(message)
            case _:
                assert_never(message)

    def register(self, message: Register, /) -> Registered:
        """Lets a process in; a new incarnation takes over what it claims, the rest is released.

        Raises:
            Refused: see `registration.check` and `check_single`.
        """
        state, table = self._state, self._state.table
        check(state, message, detect_s=self._darl.detect_s, architecture=self._architecture)
        if not self._merges():
            check_single(state, message)
        with state.change() as change:
            if not self._sits(message):
                unsent.note_lost(state, message)
                self._deltas.void(
                    change, message.replica, presented=message.deltas, claimed=message.leases
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
        return Registered(
            run=state.run,
            round=state.round,
            aggregator_port=self._port,
            limit_mb=self._limit_mb,
            heartbeat_s=self._darl.heartbeat_s,
            detect_s=self._darl.detect_s,
            leases=self._claimed(message),
            last_merged=state.last_merged.get(message.replica, ""),
            carriage=self._carriage,
        )

    def acquire(self, message: Acquire, /) -> Acquired:
        """One lease on the lowest free positions, or a tail that another has not begun.

        Repeated: the same lease, as long as it is its replica's.

        Raises:
            Refused: an unknown incarnation, or a key that was used for another request.
        """
        state = self._state
        self._roster.heard(message.replica, message.incarnation)
        self._expire()
        before = state.replies.find(message.key)
        if before is not None:
            return self._again(message, before)
        if state.replies.has_waited(message.incarnation, message.key):
            return Acquired(answer=Wait(retry_after_s=WAIT_S), round=state.round)
        lease = self._grant(message)
        if lease is not None:
            return Acquired(answer=Granted(lease=lease), round=state.round)
        if not state.table.complete:
            state.replies.waited(message.incarnation, message.key)
            return Acquired(answer=Wait(retry_after_s=WAIT_S), round=state.round)
        aside = state.table.quarantined
        answer = Exhausted(
            committed=state.table.committed.total,
            quarantined=state.quarantined_blocks(),
            num_quarantined=aside.total,
        )
        return Acquired(answer=answer, round=state.round)

    def heartbeat(self, message: Heartbeat, /) -> Instruction:
        """Notes that the replica lives, renews its leases, and says which it has lost.

        Raises:
            Refused: an unknown incarnation.
        """
        seat = self._roster.heard(message.replica, message.incarnation)
        if message.windows_per_s > 0:  # 0: this process measured nothing yet
            seat.windows_per_s = message.windows_per_s
        self._expire()
        self._revive(message.replica, [each.id for each in message.leases])
        self._renew(message.replica, message.leases)
        return Instruction(
            leases=tuple(self._state_of(message.replica, each.id) for each in message.leases),
            round=self._state.round,
        )

    def release(self, message: Release, /) -> Done:
        """Takes leases back uncommitted; those of a received delta stay until its verdict.

        Raises:
            Refused: an unknown incarnation.
        """
        self._roster.heard(message.replica, message.incarnation)
        self._give_back(message.replica, message.leases, "released")
        return Done()

    def leave(self, message: Leave, /) -> Done:
        """Goodbye; leases in `keep` and those of received deltas stay, the others return now.

        Raises:
            Refused: an incarnation that was replaced or never registered.
        """
        seat = self._roster.seat_of(message.replica, message.incarnation)
        held = {held.id for held in self._state.table.leases(message.replica)}
        self._give_back(message.replica, sorted(held - set(message.keep)), "left")
        self._roster.dismiss(seat, "left")
        return Done()

    def tick(self) -> None:
        """Expires leases and marks silent members gone; call it about every second."""
        self._ticked_s = self._state.clock.monotonic()
        self._expire()
        self._roster.listen()

    def tick_if_due(self) -> None:
        """A tick where there was none for long: whoever calls it may be busy with a merge."""
        if self._state.clock.monotonic() - self._ticked_s >= TICK_S:
            self.tick()

    def evict(self, replica: str) -> None:
        """Marks the replica's member gone, however recently it was heard."""
        seat = self._state.seats.get(replica)
        if seat is not None:
            self._roster.dismiss(seat, "gone")

    def _sits(self, message: Register) -> bool:
        seat = self._state.seats.get(message.replica)
        return seat is not None and seat.member.incarnation == message.incarnation

    # ------------------------------------------------------------------------------------- granting

    def _size(self, message: Acquire) -> int:
        """Blocks that a phase of this replica should have now."""
        seats = self._state.seats
        return sizing.num_blocks(
            message.num_blocks, seat=seats[message.replica], seats=seats.values(),
            balanced=self._balanced,
        )  # fmt: skip

    def _grant(self, message: Acquire) -> Lease | None:
        state, table, number = self._state, self._state.table, self._size(message)
        decided = table.decide_grant(
            message.replica, num_blocks=number, ttl_s=message.ttl_s, ahead=message.ahead
        )
        if not decided and not message.ahead:  # who still has work does not take another's
            rates = {name: each.windows_per_s for name, each in state.seats.items()}
            decided = table.decide_steal(
                message.replica, num_blocks=number, ttl_s=message.ttl_s, rates=rates
            )
        granted = decided[-1] if decided else None
        if not isinstance(granted, GrantedEvent):
            self._lease(decided)  # set aside, and nothing else is free
            return None
        with state.change() as change:
            change.lease(decided)
            reply = Reply(message.incarnation, message.num_blocks, granted.lease)
            state.replies.note(change, message.key, reply)
        held = table.find(granted.lease, replica=message.replica)
        assert held is not None, "it was just granted"
        return _as_lease(held, message.ttl_s, meant=number)

    def _again(self, message: Acquire, before: Reply) -> Acquired:
        """The grant that this key got before: its reply was lost on the way.

        A lease that is over by now is not replaced: a copy of a request that the network kept back
        would lease blocks that nobody trains. Who still waits asks with a new key.
        """
        if (before.incarnation, before.num_blocks) != (message.incarnation, message.num_blocks):
            raise Refused(
                f"key {message.key} was used for another request: make a new one for each",
                code="bad_request",
            )
        state = self._state
        self._revive(message.replica, (before.lease,))
        self._renew(message.replica, (Renewal(id=before.lease, ttl_s=message.ttl_s),))
        held = state.table.find(before.lease, replica=message.replica)
        if held is None or held.pinned:
            return Acquired(answer=Wait(retry_after_s=0.0), round=state.round)
        lease = _as_lease(held, message.ttl_s, meant=self._size(message))
        return Acquired(answer=Granted(lease=lease), round=state.round)

    # ------------------------------------------------------------------------------------- changing

    def _lease(self, events: Sequence[Event]) -> None:
        if events:
            with self._state.change() as change:
                change.lease(events)

    def _expire(self) -> None:
        self._lease(self._state.table.decide_expiry(self._state.clock.monotonic()))

    def _give_back(self, replica: str, leases: Sequence[int], reason: Reason) -> None:
        self._lease(self._state.table.decide_return(leases, replica=replica, reason=reason))

    def _revivable(self, replica: str, leases: Sequence[int]) -> tuple[Event, ...]:
        return self._state.table.decide_revive(leases, replica=replica, ttl_s=self._floor_s)

    def _revive(self, replica: str, leases: Sequence[int]) -> None:
        self._lease(self._revivable(replica, leases))

    def _renew(self, replica: str, renewals: Sequence[Renewal]) -> None:
        """Extends and starts those leases that are this replica's, after what that promises."""
        table, now_s = self._state.table, self._state.clock.monotonic()
        asked: dict[int, float] = {}
        for each in renewals:
            if table.find(each.id, replica=replica) is not None:
                asked[each.id] = max(each.ttl_s, asked.get(each.id, 0.0))
        if not asked:
            return
        starts = [each.id for each in renewals if each.start]
        events = [e for id_, ttl_s in asked.items() for e in table.decide_promise(id_, ttl_s=ttl_s)]
        self._lease((*events, *table.decide_raise(starts, replica=replica)))
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
        return tuple(_as_lease(held, ttl_s) for held in found if held is not None)


def _as_lease(held: Held, ttl_s: float, *, meant: int = 0) -> Lease:
    return Lease(
        id=held.id, replica=held.replica, span=held.span, watermark=held.watermark, ttl_s=ttl_s,
        meant=meant,
    )  # fmt: skip
