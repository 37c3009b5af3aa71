"""The blob store as one connection sees it: which answers to trust, to try again, and to end at.

A refusal of the store (4xx with a `Refusal`) is final, unless its status says otherwise
(`blob_wire`). A connection that fails, a 5xx, 408, 425 or 429 may pass. Anything else, a redirect
or a portal's page say, is not a blob store and says so at once. Only `TryAgain` is retried.
"""

import http.client
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from pww.errors import CentralError, Refused
from pww.transport.blob_wire import BEGIN_AGAIN, BUSY, DAMAGED, ROUTE
from pww.transport.file_part import FilePart
from pww.transport.http_connection import Faults, HttpConnection
from pww.transport.proxied import PROXY_ASKS, credentials_wanted, not_let_through
from pww.transport.retry import TryAgain
from pww.transport.tls import explain
from pww.wire import Refusal

MAX_REPLY_BYTES = 4 << 20
MAX_RETRY_AFTER_S = 60.0
PASSING = (408, 425, 429)

Authorize = Callable[[str], str]
"""`authorize(refused)`: the Authorization header, another one than `refused`; "" for none."""


class BeginAgain(Exception):
    """The upload is not as this side thinks: ask what is there."""


class Damaged(Exception):
    """The other side found bytes that are not the announced ones."""


class Busy(Exception):
    """The other side has not decided yet: ask again after `after_s`."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        super().__init__(f"after {after_s:g} s")


@dataclass(frozen=True, slots=True)
class BlobSite:
    """Where the store is, and how to be let in."""

    url: str
    authorize: Authorize
    tls: ssl.SSLContext | None
    timeout_s: float


class BlobPeer:
    """One connection to the store; for one thread (`abort` for any)."""

    def __init__(self, site: BlobSite, *, repeated: Callable[[], None] = lambda: None) -> None:
        """Nothing is sent yet; `repeated` is called when a request goes out under a new session.

        Raises:
            CentralError: no http(s) URL, or a proxy that is none.
        """
        self._site, self._repeated = site, repeated
        self._http = HttpConnection(site.url, tls=site.tls, timeout_s=site.timeout_s)
        self._size_bytes = self._came = 0

    def expect(self, size_bytes: int) -> None:
        """So many bytes are to move, none of which did."""
        self._size_bytes, self._came = size_bytes, 0

    def came(self, num_bytes: int) -> None:
        """So many of them came."""
        self._came += num_bytes

    def ask(self, method: str, path: str, *, headers: Mapping[str, str] | None = None,
            body: FilePart | None = None) -> bytes:  # fmt: skip
        """The body of a small answer with status 200 or 204; `path` is below the store's route.

        Raises:
            TryAgain: it may work later.
            BeginAgain, Damaged, Busy: the store says so.
            Refused: final.
            CentralError: what answers is no blob store, or not the one it should be.
        """
        reply = self.open(method, path, headers=headers or {}, body=body)
        content = self.small(reply)
        if reply.status not in (200, 204):
            raise self.judged(reply, content)
        return content

    def open(self, method: str, path: str, *, headers: Mapping[str, str],
             body: FilePart | None = None) -> http.client.HTTPResponse:  # fmt: skip
        """An answer whose body is still to be read. Raises as `ask`, but for its statuses."""
        self.expect(0 if body is None else body.size_bytes)
        held = self._site.authorize("")
        reply = self._once(method, path, headers, body, held)
        if reply.status != 401 or not held:
            return reply
        self.small(reply)
        renewed = self._site.authorize(held)
        self._repeated()
        return self._once(method, path, headers, body, renewed)

    def _once(self, method: str, path: str, headers: Mapping[str, str], body: FilePart | None,
              authorization: str) -> http.client.HTTPResponse:  # fmt: skip
        sent = {"accept-encoding": "identity", **headers}
        if authorization:
            sent["authorization"] = authorization
        try:
            return self._http.request(method, f"{ROUTE}{path}", sent, body)
        except Faults as fault:
            raise self.broken(fault) from fault

    def small(self, reply: http.client.HTTPResponse) -> bytes:
        """The whole body of an answer, unless it is larger than any should be.

        Raises:
            TryAgain: it broke off.
            CentralError: it is too large.
        """
        try:
            content = reply.read(MAX_REPLY_BYTES + 1)
        except Faults as fault:
            raise self.broken(fault) from fault
        if len(content) > MAX_REPLY_BYTES:
            self.drop()
            raise self.stranger(f"more than {MAX_REPLY_BYTES} bytes")
        if reply.length:  # http.client gives what there is
            self.drop()
            raise TryAgain(f"an answer that ended {reply.length} bytes early")
        if reply.length is None and not reply.chunked and reply.status == 200:
            self.drop()  # its end cannot be told from a broken connection's
            raise TryAgain("an answer without a length")
        return content

    def broken(self, fault: BaseException) -> Exception:
        """A failed connection as what the retry loop understands; it is closed."""
        self._http.drop()
        url = self._site.url
        final = explain(fault, url=url) or not_let_through(fault, url=url)
        return final or TryAgain(str(fault) or type(fault).__name__)

    def judged(self, reply: http.client.HTTPResponse, content: bytes) -> Exception:
        """What an answer without what was asked for means."""
        status = reply.status
        refusal = _refusal(content)
        told = refusal.message if refusal is not None else f"HTTP {status}"
        if status in PASSING or status >= 500:
            return TryAgain(told, after_s=_retry_after_s(reply, refusal))
        if status == PROXY_ASKS:
            return credentials_wanted(self._site.url)
        if refusal is None:
            self.drop()
            kind = reply.headers.get("content-type", "no content type")
            place = reply.headers.get("location", "")
            where = f" to {place[:80]!r}, which is not followed" if 300 <= status < 400 else ""
            start = content[:80].decode("utf-8", "replace")
            return self.stranger(f"HTTP {status}{where} ({kind}) {start!r}")
        match status:
            case x if x == BUSY:
                return Busy(_retry_after_s(reply, refusal))
            case x if x == BEGIN_AGAIN:
                return BeginAgain(told)
            case x if x == DAMAGED:
                return Damaged(told)
            case _:
                return Refused(told, code=refusal.code, retry_after_s=refusal.retry_after_s)

    def stranger(self, what: str) -> CentralError:
        """The answer was not one of a blob store of this version."""
        return CentralError(
            f"{self._site.url} answered with {what}, which is no answer of a blob store of this "
            "version: check the URL, proxies in between, and that both sides run the same pww"
        )

    def drop(self) -> None:
        """Ends the connection; the next call makes another."""
        self._http.drop()

    def abort(self) -> None:
        """From another thread: ends what is going on, for good."""
        self._http.abort()

    def interrupt(self) -> bool:
        """From another thread: ends what is going on, if it is; the next call connects anew."""
        return self._http.interrupt()

    def round_trip_s(self) -> float:
        """From another thread: how long the way is, there and back; 0 if that is not known yet."""
        return self._http.round_trip_s()

    def moved(self) -> float:
        """From another thread: the share of the last piece that arrived, at either end."""
        size_bytes, came = self._size_bytes, self._came
        return min(max(came, self._http.arrived()) / size_bytes, 1.0) if size_bytes else 0.0


def _refusal(content: bytes) -> Refusal | None:
    try:
        return Refusal.model_validate_json(content)
    except ValidationError:
        return None


def _retry_after_s(reply: http.client.HTTPResponse, refusal: Refusal | None) -> float:
    """How long the store, or a proxy, asked to be left alone."""
    text = reply.headers.get("retry-after", "")
    seconds = float(text) if text.isascii() and text.isdigit() else 0.0
    if refusal is not None:
        seconds = max(seconds, refusal.retry_after_s)
    return min(seconds, MAX_RETRY_AFTER_S)
