"""The members at work: who sits for a replica, who was heard, who went silent.

One seat a replica. When a member was last heard is monotonic time in memory: after a restart
everybody counts as live until the grace period is over; only a new process of the same replica need
not wait that long.
"""

import json
from typing import Literal

from pww.central.membership import Announcer, Member, Seat
from pww.central.state import Change, State
from pww.errors import Refused
from pww.wire import Register


class Roster:
    """Seats of a run; joins and leaves go to `announcer`."""

    def __init__(self, state: State, announcer: Announcer, *, detect_s: float) -> None:
        self._state, self._announcer, self._detect_s = state, announcer, detect_s
        for seat in state.seats.values():
            if seat.state == "live":
                announcer.add(seat.member, joined=True)

    def seat_of(self, replica: str, incarnation: str) -> Seat:
        """The seat that the incarnation holds.

        Raises:
            Refused: it was replaced, or never registered here.
        """
        seat = self._state.seats.get(replica)
        if seat is None or seat.member.incarnation != incarnation:
            raise Refused(
                f"incarnation {incarnation} of {replica} is not registered here (any more): it was "
                "replaced by a newer process, or this central never knew it; start it again",
                code="unknown_incarnation",
            )
        return seat

    def heard(self, replica: str, incarnation: str) -> Seat:
        """The seat of a member that was just heard; call it under the lock.

        Raises:
            Refused: it was replaced, never registered, or said goodbye.
        """
        seat = self.seat_of(replica, incarnation)
        if seat.state == "left":
            raise Refused(
                f"incarnation {incarnation} of {replica} said goodbye: start it again",
                code="unknown_incarnation",
            )
        seat.seen_s, seat.grace_s = self._state.clock.monotonic(), 0.0
        if seat.state == "gone":
            with self._state.change() as change:
                self.set_state(change, seat, "live")
                change.told(lambda: self._announcer.add(seat.member, joined=True))
        return seat

    def sit(self, change: Change, message: Register) -> None:
        """Seats a registered process; its predecessor, if another one, is replaced for good."""
        state = self._state
        member = Member(message.replica, message.incarnation, message.node_key)
        before = state.seats.get(message.replica)
        if before is not None and before.member.incarnation != message.incarnation:
            change.tx.execute(
                "UPDATE members SET state = 'replaced' WHERE incarnation = ?",
                before.member.incarnation,
            )
            state.replies.forget(change, before.member.incarnation)
            if before.state == "live":
                change.told(lambda: self._announcer.add(before.member, joined=False))
        change.tx.execute(
            "INSERT INTO members VALUES (?, ?, ?, 'live', ?, ?, ?) "
            "ON CONFLICT (incarnation) DO UPDATE SET state = 'live', node_key = excluded.node_key",
            member.incarnation,
            member.replica,
            member.node_key,
            json.dumps(message.versions),
            state.clock.wall(),
            1.0 if before is None else before.fit,
        )

        def seated() -> None:
            seat = Seat(member, "live", state.clock.monotonic())
            if before is not None:  # what was measured is the replica's, not the process'
                seat.windows_per_s, seat.fit = before.windows_per_s, before.fit
                seat.last, seat.staleness = before.last, before.staleness
            state.seats[member.replica] = seat

        change.then(seated)
        change.told(lambda: self._announcer.add(member, joined=True))

    def set_state(self, change: Change, seat: Seat, value: Literal["live", "gone", "left"]) -> None:
        """Changes what a seat's member is."""
        change.tx.execute(
            "UPDATE members SET state = ? WHERE incarnation = ?", value, seat.member.incarnation
        )
        change.then(lambda: setattr(seat, "state", value))

    def dismiss(self, seat: Seat, value: Literal["gone", "left"]) -> None:
        """The seat's member is not there any more; said once."""
        if seat.state == "live" or (seat.state == "gone" and value == "left"):
            was_live = seat.state == "live"
            with self._state.change() as change:
                self.set_state(change, seat, value)
                if was_live:
                    change.told(lambda: self._announcer.add(seat.member, joined=False))

    def listen(self) -> None:
        """Members silent for the detection time are gone; they may come back."""
        now_s = self._state.clock.monotonic()
        for seat in self._state.seats.values():
            silent_s = now_s - seat.seen_s
            if seat.state == "live" and silent_s >= max(self._detect_s, seat.grace_s):
                self.dismiss(seat, "gone")
