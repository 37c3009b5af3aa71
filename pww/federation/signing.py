"""Signs a site's requests with its node key, by the central's clock rather than this machine's.

Flower refuses a signed time that is more than 5 s ahead of its own or 305 s behind. Every answer
carries the central's time in its Date header, so a wrong clock here is measured and corrected, and
named once in the log.
"""

import datetime
import logging
import math
from base64 import b64encode
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from pww.clock import Clock

log = logging.getLogger(__name__)
TOLERATED_S = 3.0
"""A Date header has whole seconds and is as old as the way back: less than this is no fault."""


class Signer:
    """An interceptor of flwr's HTTP client; several clients of one node may share it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, *, clock: Clock) -> None:
        self._key, self._clock = key, clock
        self.public_pem: bytes = public_key_to_bytes(key.public_key())
        self.offset_s = 0.0

    @classmethod
    def new(cls, *, clock: Clock) -> "Signer":
        """A fresh EC P-384 key, which lives in this process's memory only."""
        return cls(ec.generate_private_key(ec.SECP384R1()), clock=clock)

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Adds the three headers of Flower's node authentication, and reads the central's clock."""
        seconds = self._clock.wall() + self.offset_s
        stamp = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).isoformat()
        headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_pem).decode(),
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(
                sign_message(self._key, stamp.encode())
            ).decode(),
        }
        add_headers(context.request, headers)
        response = call_next(context)
        self._measure(response.headers.get("date", ""))
        return response

    def _measure(self, date: str) -> None:
        """Follows the central's clock when the signed time is off by more than is tolerated."""
        try:
            theirs = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        ahead_s = self._clock.wall() + self.offset_s - theirs
        if abs(ahead_s) <= TOLERATED_S:
            return
        self.offset_s -= ahead_s
        word = "ahead of" if self.offset_s < 0 else "behind"
        log.warning(
            "this machine's clock is %.0f s %s the central's; corrected here, but NTP should do it",
            math.fabs(self.offset_s), word,
        )  # fmt: skip
