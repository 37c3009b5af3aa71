"""Which lease each idempotency key got: a reply that was lost is given again, never a second lease.

The last keys of each incarnation are kept, in memory and in the ledger; a process has at most two
requests on the way, so an older key can only be a copy that the network kept back.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pww.central.ledger import Ledger

if TYPE_CHECKING:
    from pww.central.state import Change

KEPT = 64
"""Keys an incarnation."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a key was used for, and the lease that it got."""

    incarnation: str
    num_blocks: int
    lease: int


class Replies:
    """The keys on record in one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._by_key: dict[str, Reply] = {}
        self._keys: dict[str, deque[str]] = {}  # by incarnation, oldest first
        self._waited: dict[str, deque[str]] = {}  # likewise: keys that were told to wait
        for key, incarnation, num_blocks, lease in ledger.rows(
            "SELECT key, incarnation, num_blocks, lease FROM replies ORDER BY seq"
        ):
            reply = Reply(str(incarnation), cast(int, num_blocks), cast(int, lease))
            self._remember(str(key), reply)

    def find(self, key: str) -> Reply | None:
        """What the key got, None if it is new (or very old)."""
        return self._by_key.get(key)

    def waited(self, incarnation: str, key: str) -> None:
        """The key was told to wait, so its sender asks with another one from now on.

        In memory only: after a restart a copy of it may lease blocks until they expire.
        """
        self._waited.setdefault(incarnation, deque(maxlen=KEPT)).append(key)

    def has_waited(self, incarnation: str, key: str) -> bool:
        """Whether a request with the key is a copy of one that was told to wait."""
        return key in self._waited.get(incarnation, ())

    def note(self, change: "Change", key: str, reply: Reply) -> None:
        """Puts a new key on record, in place of the oldest one of its incarnation."""
        keys = self._keys.get(reply.incarnation)
        if keys and len(keys) >= KEPT:
            change.tx.execute("DELETE FROM replies WHERE key = ?", keys[0])
        change.tx.execute(
            "INSERT INTO replies (key, incarnation, num_blocks, lease) VALUES (?, ?, ?, ?)",
            key,
            reply.incarnation,
            reply.num_blocks,
            reply.lease,
        )
        change.then(lambda: self._remember(key, reply))

    def forget(self, change: "Change", incarnation: str) -> None:
        """The incarnation was replaced: nothing of it is answered any more."""
        change.tx.execute("DELETE FROM replies WHERE incarnation = ?", incarnation)
        change.then(lambda: self._drop(incarnation))

    def _remember(self, key: str, reply: Reply) -> None:
        keys = self._keys.setdefault(reply.incarnation, deque())
        if len(keys) >= KEPT:
            del self._by_key[keys.popleft()]
        keys.append(key)
        self._by_key[key] = reply

    def _drop(self, incarnation: str) -> None:
        self._waited.pop(incarnation, None)
        for key in self._keys.pop(incarnation, ()):
            del self._by_key[key]
