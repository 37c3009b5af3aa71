"""What is remembered of peers that were refused: enough to log each once and to slow them down.

Both tables are bounded, whoever knocks: a full log table falls silent until its hour is over, and a
full count table forgets the peer that began first.
"""

import logging
import threading
from typing import Any

from pww.clock import Clock
from pww.errors import Refused

log = logging.getLogger(__name__)
MAX_PEERS = 1024
HOUR_S, MINUTE_S = 3600.0, 60.0
MAX_FAILED = 10
"""Failed openings of one address within a minute, before it has to wait."""


def peer_of(scope: Any) -> str:
    """Whom an ASGI request comes from; "" if the server does not say."""
    return str((scope.get("client") or ("",))[0])


class Strangers:
    """Thread-safe. A peer is an address, without its port."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said: set[tuple[str, str]] = set()
        self._said_since_s = clock.monotonic()
        self._failed: dict[str, tuple[float, int]] = {}  # peer -> first failure, how many
        self.num_refused = 0

    def note(self, peer: str, reason: str, text: str) -> None:
        """Counts a refusal, and logs it if this peer was not refused for this reason lately."""
        now_s = self._clock.monotonic()
        with self._lock:
            self.num_refused += 1
            if now_s - self._said_since_s >= HOUR_S:
                self._said.clear()
                self._said_since_s = now_s
            if (peer, reason) in self._said or len(self._said) >= MAX_PEERS:
                return
            self._said.add((peer, reason))
            full = len(self._said) == MAX_PEERS
        log.warning("refused %s: %s", peer or "a peer", text)
        if full:
            log.warning("%d refusals were logged; more of this hour are counted only", MAX_PEERS)

    def failed(self, peer: str) -> None:
        """Counts a failed opening."""
        now_s = self._clock.monotonic()
        with self._lock:
            first_s, count = self._failed.pop(peer, (now_s, 0))
            if now_s - first_s >= MINUTE_S:
                first_s, count = now_s, 0
            if len(self._failed) >= MAX_PEERS:
                del self._failed[min(self._failed, key=lambda p: self._failed[p][0])]
            self._failed[peer] = (first_s, count + 1)

    def check(self, peer: str) -> None:
        """Passes a peer that did not fail too often.

        Raises:
            Refused: too_many, with how long to wait.
        """
        with self._lock:
            first_s, count = self._failed.get(peer, (0.0, 0))
        left_s = first_s + MINUTE_S - self._clock.monotonic()
        if count >= MAX_FAILED and left_s > 0:
            raise Refused(
                f"{count} openings from this address failed within {MINUTE_S:.0f} s: wait "
                f"{left_s:.0f} s",
                code="too_many",
                retry_after_s=left_s,
            )
