"""The door of the central: opens sessions for allowed keys, and says who each request is from.

Knows no HTTP: it judges an `Open` message, an Authorization header and a path. A refusal has no
effect but one line in the log for each peer and reason. Every port asks the same door.
"""

import hmac
import logging
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Protocol

from pww.central.allowed import Allowed
from pww.central.strangers import Strangers
from pww.central.tokens import OPERATOR, Identity, Tokens, secret_in
from pww.clock import Clock
from pww.errors import Refused, StateError
from pww.transport.site_key import Open, Opened, fingerprint, is_signed
from pww.wire import Register

__all__ = ["Door", "Identity"]

log = logging.getLogger(__name__)
TOKEN_S = 900.0
"""A token's life; its holder opens anew before the end."""
WINDOW_S = 300.0
"""How far an opening's signed time may be from the central's clock."""
RESTART_S = 5.0
"""An opening may be this much older than this process, which knows no earlier one's openings."""
MAX_OPENINGS = 4096
"""Openings remembered, of the last ten minutes."""
OPERATOR_FILE = "operator.token"
CALLS = "/v1/"
"""Below this are the calls of replicas; all else only shows something."""


class Message(Protocol):
    """What every call of a replica names."""

    @property
    def replica(self) -> str:
        """`site/replica`."""

    @property
    def incarnation(self) -> str:
        """The process life."""


class Door:
    """Thread-safe; `check` and `match` together take a few microseconds."""

    def __init__(
        self, allowed: Allowed, tokens: Tokens, *, operator_token: str, clock: Clock
    ) -> None:
        self._allowed, self._tokens, self._clock = allowed, tokens, clock
        self._operator = operator_token.encode()
        self._strangers = Strangers(clock)
        self._lock = threading.Lock()
        self._openings: dict[str, float] = {}  # key and nonce -> when (monotonic), oldest first
        self._started_s = clock.monotonic()

    @classmethod
    def of(cls, keys: Path, *, state: Path, clock: Clock) -> "Door":
        """The door of a central with the keys in `keys` and its state folder `state`.

        Raises:
            StateError: a file is missing or damaged.
        """
        allowed = Allowed(keys)
        try:
            operator = (keys / OPERATOR_FILE).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as why:
            raise StateError(
                f"{keys / OPERATOR_FILE} cannot be read ({why}): give central.security.keys the "
                "folder that python -m pww.central init made"
            ) from why
        return cls(allowed, Tokens(secret_in(state)), operator_token=operator, clock=clock)

    # ------------------------------------------------------------------------------- sessions

    def open(self, message: Open, *, peer: str = "") -> Opened:
        """A token for a replica whose key signed `message` just now.

        Raises:
            Refused: unauthorised, or too_many after too many failures of this peer.
            StateError: the list of keys cannot be read.
        """
        self._strangers.check(peer)
        key = fingerprint(message.key)
        if self._allowed.now().by_replica.get(message.replica) != key:
            self._fail(
                peer, f"key of {message.replica}",
                f"key {key[:16]}… is not the key of replica {message.replica} at this central (it "
                "was never made here, or was revoked): copy a bundle of this central that has the "
                "replica, or ask its operator",
            )  # fmt: skip
        age_s = self._clock.wall() - message.signed_s
        if abs(age_s) > WINDOW_S:
            self._fail(
                peer, f"clock of {message.replica}",
                f"the opening of {message.replica} is signed {abs(age_s):.0f} s "
                f"{'behind' if age_s > 0 else 'ahead of'} the central's clock, more than "
                f"{WINDOW_S:.0f} s: sign it by the time of the Date header",
            )  # fmt: skip
        if not is_signed(message):
            self._fail(
                peer, f"signature of {message.replica}",
                f"the opening of {message.replica} is not signed by its key: open with the key of "
                "the bundle",
            )  # fmt: skip
        up_s = self._clock.monotonic() - self._started_s
        if age_s > up_s + RESTART_S or not self._is_new(f"{key}{message.nonce}"):
            self._fail(
                peer, f"used opening of {message.replica}",
                f"the opening of {message.replica} was used before, or is older than this "
                "central's process: sign a new one",
            )  # fmt: skip
        who = Identity(message.replica, message.incarnation, key)
        expiry_s = int(self._clock.wall() + TOKEN_S)
        return Opened(token=self._tokens.mint(who, expiry_s=expiry_s), ttl_s=TOKEN_S)

    def _is_new(self, opening: str) -> bool:
        """Notes a genuine opening; False if it was noted before. Only holders of keys get here."""
        now_s = self._clock.monotonic()
        with self._lock:
            while self._openings:
                oldest = next(iter(self._openings))
                if now_s - self._openings[oldest] <= 2 * WINDOW_S:
                    break
                del self._openings[oldest]
            if opening in self._openings:
                return False
            if len(self._openings) >= MAX_OPENINGS:
                raise Refused(
                    f"{MAX_OPENINGS} sessions were opened in the last {2 * WINDOW_S:.0f} s: wait",
                    code="too_many",
                    retry_after_s=WINDOW_S / 10,
                )
            self._openings[opening] = now_s
            return True

    # --------------------------------------------------------------------------------- checks

    def check(self, authorization: str, path: str, *, peer: str = "") -> Identity:
        """Who a request is from, by its Authorization header; look at nothing of it before.

        Raises:
            Refused: unauthorised.
            StateError: the list of keys cannot be read.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            self._refuse(
                peer, "no credential",
                f"{_shown(path)} without a credential: a site gives central.bundle, an operator "
                f"Authorization: Bearer and the content of {OPERATOR_FILE}",
            )  # fmt: skip
        if not path.startswith(CALLS) and self._is_operator(token):
            return OPERATOR
        found = self._tokens.read(token)
        if found is None:
            self._refuse(
                peer, "unknown token",
                f"{_shown(path)} with a token that is not of this central: open a session",
            )  # fmt: skip
        who, expiry_s = found
        if self._allowed.now().by_replica.get(who.replica) != who.fingerprint:
            self._refuse(
                peer, f"revoked {who.replica}",
                f"the key of replica {who.replica} was revoked at the central: ask its operator "
                "for a new bundle",
            )  # fmt: skip
        late_s = self._clock.wall() - expiry_s
        if late_s >= 0:  # every session's end: no news
            raise _unauthorised(f"the token expired {late_s:.0f} s ago: open a session")
        return who

    def match(self, who: Identity, message: Message, *, peer: str = "") -> None:
        """Passes a message that is its sender's own; a registration has its sender's key.

        Raises:
            Refused: unauthorised.
        """
        if (message.replica, message.incarnation) != (who.replica, who.incarnation):
            self._refuse(
                peer, f"name {who.replica} {message.replica}",
                f"a message in the name of {message.replica} (incarnation "
                f"{message.incarnation[:8]}) with the token of {who.replica} (incarnation "
                f"{who.incarnation[:8]}): send it with its own",
            )  # fmt: skip
        if isinstance(message, Register) and message.node_key:
            if fingerprint(message.node_key) == who.fingerprint:
                return
            self._refuse(
                peer, f"node key {who.replica}",
                f"{who.replica} registers a node key that is not its key: send the public key "
                "that opened the session",
            )  # fmt: skip

    def keys(self) -> Mapping[str, str]:
        """Replicas by public key (PEM); another object as soon as the list was changed.

        Raises:
            StateError: the list of keys cannot be read.
        """
        return self._allowed.now().by_pem

    def check_node(self, authorization: str, path: str, pem: str, *, peer: str) -> Identity:
        """As `check`, for a call that a Flower node signs with the key `pem`: one identity in all.

        Raises:
            Refused: unauthorised.
            StateError: the list of keys cannot be read.
        """
        who = self.check(authorization, path, peer=peer)
        if fingerprint(pem) != who.fingerprint:
            self._refuse(
                peer, f"node of {who.replica}",
                f"{_shown(path)} with the token of {who.replica} and another one's node key: use "
                "the key that opened the session",
            )  # fmt: skip
        return who

    def _is_operator(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self._operator)

    def _fail(self, peer: str, reason: str, text: str) -> NoReturn:
        self._strangers.failed(peer)
        self._refuse(peer, reason, text)

    def _refuse(self, peer: str, reason: str, text: str) -> NoReturn:
        self._strangers.note(peer, reason, text)
        raise _unauthorised(text)


def _unauthorised(text: str) -> Refused:
    return Refused(text, code="unauthorised")


def new_operator_token() -> str:
    """A secret for people who may read status and metrics."""
    return secrets.token_hex(32)


def _shown(path: str) -> str:
    """A stranger's path, safe for a log line."""
    return repr(path[:80])
