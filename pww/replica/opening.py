"""The session that a replica's requests go under: opened once, renewed before its end.

Its token is bound to one process life; whoever needs it meanwhile (the heartbeat thread, Flower's
calls) reads it from the `SiteKey`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pww.clock import Clock
from pww.errors import Refused
from pww.transport.site_key import Open, Opened, SiteKey

RENEW_AT = 0.7
"""Share of a token's life after which it is renewed: there is time for an outage."""


class Sender(Protocol):
    """What every call of a replica names."""

    @property
    def replica(self) -> str:
        """`site/replica`."""

    @property
    def incarnation(self) -> str:
        """The process life."""


@dataclass(frozen=True, slots=True)
class Who:
    """A `Sender`."""

    replica: str
    incarnation: str


class Opening:
    """Keeps one session open. Thread-safe: one thread opens it, the others wait for that."""

    def __init__(
        self, key: SiteKey, *, clock: Clock, repeated: Callable[[], None] = lambda: None
    ) -> None:
        """Nothing is sent yet; `repeated` is called when an opening is sent once more."""
        self._key, self._clock, self._repeated = key, clock, repeated
        self._lock = threading.Lock()
        self._for = ("", "")
        self._renew_s = 0.0

    def header(self, sender: Sender, post: Callable[[Open], Opened], *, refused: str = "") -> str:
        """The Authorization header for a message of `sender`; `post` sends an opening.

        Args:
            sender: whose message it is; another one needs another session.
            post: sends an opening to the central.
            refused: the header that the central did not take: another one is wanted.

        Raises:
            Refused: the central does not open a session for this key; whatever `post` raises.
        """
        who = (sender.replica, sender.incarnation)
        with self._lock:
            now_s = self._clock.monotonic()
            held = self._key.authorization
            if held and held != refused and who == self._for and now_s < self._renew_s:
                return held
            opened = self._open(who, post)
            self._key.authorization = f"Bearer {opened.token}"
            self._for, self._renew_s = who, now_s + RENEW_AT * opened.ttl_s
            return self._key.authorization

    def _open(self, who: tuple[str, str], post: Callable[[Open], Opened]) -> Opened:
        """Signed once more if the first answer showed that this machine's clock is wrong."""
        offset_s = self._key.theirs.offset_s
        try:
            return post(self._key.open(*who))
        except Refused as fault:
            if fault.code != "unauthorised" or self._key.theirs.offset_s == offset_s:
                raise
        self._repeated()
        return post(self._key.open(*who))
