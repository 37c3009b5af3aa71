"""Signs a site's Fleet calls with its node key, by the central's clock rather than this machine's.

Flower refuses a signed time that is more than 5 s ahead of its own or 305 s behind, so the time is
that of the central's Date headers. The token of the open session goes with every call too: Flower's
signature says which key, the token says which process life of its holder.
"""

import datetime
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.interceptors.http.utils import add_headers

from pww.clock import Clock
from pww.transport.site_key import SiteKey


class Signer:
    """An interceptor of flwr's HTTP client; several clients of one node may share it."""

    def __init__(self, key: SiteKey) -> None:
        self._key = key
        self.public_pem: bytes = key.public_pem.encode()

    @classmethod
    def new(cls, *, clock: Clock) -> "Signer":
        """A fresh EC P-384 key, which lives in this process's memory only."""
        return cls(SiteKey.new(clock=clock))

    @property
    def offset_s(self) -> float:
        """What the central's clock is ahead of this machine's, as far as is known."""
        return self._key.theirs.offset_s

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Adds the three headers of Flower's node authentication, and reads the central's clock."""
        theirs = self._key.theirs
        stamp = datetime.datetime.fromtimestamp(theirs.now_s(), tz=datetime.UTC).isoformat()
        headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_pem).decode(),
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(self._key.sign(stamp.encode())).decode(),
        }
        if self._key.authorization:
            headers["authorization"] = self._key.authorization
        add_headers(context.request, headers)
        asked_s = theirs.asked_s()
        response = call_next(context)
        theirs.measure(response.headers.get("date", ""), asked_s=asked_s)
        return response
