"""Joins and leaves for the aggregator's process: the last of each replica, numbered, until obeyed.

Memory is bounded by the number of replicas, since what happened to a replica before its last news
changes nothing any more. A start of the coordinator is a new `life` with new numbers; it begins
with every member that the books know to be live.
"""

import secrets
import threading
from collections.abc import Callable
from functools import partial

from pww.central.books_wire import News, Note
from pww.central.membership import Member

HOLD_S = 2.0
"""How long a registration's answer waits for the aggregator to admit the node's key."""


class MemberFeed:
    """`Members` whose other end is the process that follows. Thread-safe."""

    def __init__(self, *, new_life: Callable[[], str] = partial(secrets.token_hex, 16)) -> None:
        self.life = new_life()
        self._changed = threading.Condition()
        self._notes: dict[str, tuple[int, Note]] = {}  # by replica, oldest first
        self._seq = self._obeyed = 0
        self._attached = self._closed = False

    @property
    def attached(self) -> bool:
        """Whether an aggregator is there."""
        return self._attached

    def attach(self, there: bool) -> None:
        """An aggregator came, or it is gone."""
        with self._changed:
            self._attached = there
            self._changed.notify_all()

    def joined(self, member: Member) -> None:
        """The member is live (again)."""
        self._note(member, joined=True)

    def left(self, member: Member) -> None:
        """The member is gone."""
        self._note(member, joined=False)

    def _note(self, member: Member, *, joined: bool) -> None:
        with self._changed:
            self._seq += 1
            note = Note(
                replica=member.replica, incarnation=member.incarnation, node_key=member.node_key,
                joined=joined,
            )  # fmt: skip
            self._notes.pop(member.replica, None)
            self._notes[member.replica] = (self._seq, note)
            self._changed.notify_all()

    def since(self, seen: int, *, life: str, wait_s: float) -> News:
        """What the follower has not seen; waits for the next if there is nothing.

        `seen` counts in the numbers of `life`; of another life nothing was seen, and the answer
        comes at once.
        """
        with self._changed:
            if life != self.life or seen > self._seq:
                seen, wait_s = 0, 0.0
            self._obeyed = seen
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._seq > seen or self._closed, wait_s)
            notes = tuple(note for number, note in self._notes.values() if number > seen)
            return News(life=self.life, seq=self._seq, notes=notes)

    def settle(self, within_s: float = HOLD_S) -> None:
        """Returns when all that is known now was obeyed, or when nobody is there to do so."""
        with self._changed:
            wanted = self._seq
            self._changed.wait_for(
                lambda: self._obeyed >= wanted or not self._attached or self._closed, within_s
            )

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
