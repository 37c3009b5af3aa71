"""Who takes part: members as values, and the port through which others hear of joins and leaves."""

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Literal, Protocol

from pww.errors import PwwError
from pww.wire import Offer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """One process life of a replica."""

    replica: str
    incarnation: str
    node_key: str  # PEM of its Flower node's public key, "" for none


class Members(Protocol):
    """Hears of members in the order in which it happened, never under the coordinator's lock."""

    def joined(self, member: Member) -> None:
        """The member is live (again); may be told more than once."""

    def left(self, member: Member) -> None:
        """The member said goodbye, went silent, or was replaced."""


class Alone:
    """Nobody to tell: a replica that trains alone has no gate to open."""

    def joined(self, member: Member) -> None:
        """Nothing to do."""

    def left(self, member: Member) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class Seat:
    """A replica's current member and what is known of it; only the first two fields are durable."""

    member: Member
    state: Literal["live", "gone", "left"]
    seen_s: float  # monotonic; after a restart the moment of the restart
    grace_s: float = 0.0  # may be silent that long: not heard since the restart
    windows_per_s: float = 0.0
    fit: float = 1.0  # share of a phase that it delivers in time
    last: Offer | None = None  # its newest delta that was noted
    staleness: int = 0  # of that one


class Announcer:
    """Delivers joins and leaves one at a time and in order, whoever delivers them."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._queue: deque[tuple[Member, bool]] = deque()
        self._lock = threading.RLock()

    def add(self, member: Member, *, joined: bool) -> None:
        """Notes what happened; call it under the coordinator's lock, that gives the order."""
        self._queue.append((member, joined))

    def deliver(self) -> None:
        """Tells everything noted so far; call it without the coordinator's lock.

        What is wrong with one member is that member's: it is logged, and nobody else pays for it.
        """
        with self._lock:
            while self._queue:
                member, joined = self._queue.popleft()
                try:
                    if joined:
                        self._members.joined(member)
                    else:
                        self._members.left(member)
                except PwwError as fault:
                    word = "take part" if joined else "be let go of"
                    log.error("%s cannot %s: %s", member.replica, word, fault)
