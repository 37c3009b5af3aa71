"""Session tokens: stateless, bound to one process life and one key, checked in microseconds.

    1~REPLICA~INCARNATION~KEY~EXPIRY~MAC      the MAC is HMAC-SHA256 over all before it

The secret is in the central's state folder, so tokens outlive a restart; a central that lost it
refuses them, and sites open new sessions. The expiry is by the central's wall clock: a step of an
hour costs every site one new opening, and no lease.
"""

import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pww.errors import StateError
from pww.folder import write_durably

FILE = "session.secret"
SECRET_BYTES = 32
DOMAIN = b"pww session token v1\n"
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a request is from; the operator, who may only read, has no replica."""

    replica: str
    incarnation: str
    fingerprint: str  # of the replica's key


OPERATOR = Identity("", "", "")


class Tokens:
    """Mints and reads tokens under one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def mint(self, who: Identity, *, expiry_s: int) -> str:
        """The token of `who` until `expiry_s` (wall clock)."""
        text = "~".join((_VERSION, who.replica, who.incarnation, who.fingerprint, str(expiry_s)))
        return f"{text}~{self._mac(text.encode())}"

    def read(self, token: str) -> tuple[Identity, int] | None:
        """Whose token it is and until when; None if it was not minted under this secret."""
        text, _, mac = token.rpartition("~")
        # The MAC first: nothing of a stranger's text is looked at before.
        try:
            genuine = hmac.compare_digest(self._mac(text.encode()).encode(), mac.encode())
        except UnicodeEncodeError:
            return None
        if not genuine:
            return None
        version, replica, incarnation, key, expiry = text.split("~")
        if version != _VERSION:
            return None
        return Identity(replica, incarnation, key), int(expiry)

    def _mac(self, text: bytes) -> str:
        return hmac.digest(self._secret, DOMAIN + text, "sha256").hex()


def secret_in(state: Path) -> bytes:
    """The secret of the state folder, made on the first start.

    Raises:
        StateError: the file is damaged or cannot be read or made.
    """
    path = state / FILE
    try:
        if not path.exists():
            write_durably(path, secrets.token_hex(SECRET_BYTES).encode(), private=True)
        os.chmod(path, 0o600)
        secret = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as why:
        raise StateError(
            f"{path} cannot be used ({type(why).__name__}): delete it and start again; every site "
            "then opens a new session by itself"
        ) from why
    if len(secret) != SECRET_BYTES:
        raise StateError(
            f"{path} holds {len(secret)} bytes, not {SECRET_BYTES}: delete it and start again; "
            "every site then opens a new session by itself"
        )
    return secret
