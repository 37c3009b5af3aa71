"""The one identity of a replica: its EC P-384 key, which opens sessions and is its Flower node's.

A session is opened by one signed message; its token goes with every request after that, since a
signature per request would cost half a millisecond. The messages are here, beside the rule what is
signed, because that rule is all that the two sides must agree on.
"""

import base64
import binascii
import hashlib
import secrets
from typing import Annotated

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import Field, StringConstraints

from pww.clock import Clock
from pww.errors import StateError
from pww.transport.their_clock import TheirClock
from pww.wire import Message, Pem, ReplicaId, Seconds, Token

DOMAIN = b"pww session open v1\n"
"""Begins all that is signed here, so that no signature made for something else fits."""


class Open(Message):
    """Opens a session: proves that its sender has the replica's private key, now."""

    replica: ReplicaId
    incarnation: Token
    key: Pem  # the replica's public key
    nonce: Token  # an opening counts once
    signed_s: Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]  # the central's clock
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z+/=]{1,256}$")]


class Opened(Message):
    """Goes with every request as `Authorization: Bearer TOKEN` until `ttl_s` are over."""

    token: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z._~/-]{1,512}$")]
    ttl_s: Seconds


class SiteKey:
    """A replica's private key, the central's clock, and the session that is open. Thread-safe."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, *, clock: Clock) -> None:
        self._key = key
        self.theirs = TheirClock(clock)
        self.public_pem = public_pem(key)
        self.authorization = ""
        """The Authorization header of the open session; "" before one is open."""

    @classmethod
    def new(cls, *, clock: Clock) -> "SiteKey":
        """A fresh key, which lives in this process's memory only."""
        return cls(ec.generate_private_key(ec.SECP384R1()), clock=clock)

    def sign(self, data: bytes) -> bytes:
        """ECDSA with SHA-256."""
        return self._key.sign(data, ec.ECDSA(SHA256()))

    def open(self, replica: str, incarnation: str) -> Open:
        """A message that opens a session once, within minutes from now."""
        unsigned = Open(
            replica=replica,
            incarnation=incarnation,
            key=self.public_pem,
            nonce=secrets.token_hex(16),
            signed_s=self.theirs.now_s(),
            signature="=",
        )
        signature = base64.b64encode(self.sign(_signed(unsigned))).decode()
        return unsigned.model_copy(update={"signature": signature})


def is_signed(message: Open) -> bool:
    """Whether the signature is that of the key in the message, over all the rest of it."""
    try:
        key = load_pem_public_key(message.key.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        signature = base64.b64decode(message.signature, validate=True)
        key.verify(signature, _signed(message), ec.ECDSA(SHA256()))
    except (ValueError, UnsupportedAlgorithm, binascii.Error, InvalidSignature):
        return False
    return True


def _signed(message: Open) -> bytes:
    key = hashlib.sha256(message.key.encode()).hexdigest()
    fields = (message.replica, message.incarnation, key, message.nonce, repr(message.signed_s))
    return DOMAIN + "\n".join(fields).encode()  # no field can hold a newline


def public_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """The public half in the one PEM form that keys are compared by."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private half, for a file that only its owner may read."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_key(pem: bytes, *, name: str, remedy: str) -> ec.EllipticCurvePrivateKey:
    """A private key of ours.

    Raises:
        StateError: `name` holds no unencrypted EC P-384 private key; `remedy` says what to do.
    """
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise StateError(f"{name} holds no EC P-384 private key: {remedy}")
    return key


def fingerprint(pem: str) -> str:
    """SHA-256 of a PEM text in hex: a name for a key or certificate."""
    return hashlib.sha256(pem.encode()).hexdigest()
