"""The lease protocol's five calls over HTTP, repeated through outages; every answer is checked.

A refusal of the central (4xx with a `Refusal` body) is final. A connection that fails, a 5xx, 408,
425 or 429 may pass and is tried again. Anything else is not a pww central and says so at once,
since waiting would not help. With a bundle every request goes under a session that its key opens;
a 401 opens another one, once.
"""

import threading
from functools import partial
from typing import TypeVar

import httpx
from pydantic import ValidationError

from pww.clock import Clock
from pww.config.schema import Transport
from pww.errors import CentralError, Refused, Unreachable
from pww.replica.opening import Opening, Sender
from pww.transport.bundle import Bundle
from pww.transport.proxied import PROXY_ASKS, credentials_wanted, not_let_through
from pww.transport.retry import Retry, TryAgain, Uniform
from pww.transport.site_key import Open, Opened
from pww.transport.tls import explain
from pww.wire import (
    Acquire,
    Acquired,
    Done,
    Heartbeat,
    Instruction,
    Leave,
    Message,
    Refusal,
    Register,
    Registered,
    Release,
)

Reply = TypeVar("Reply", bound=Message)
Call = Register | Acquire | Heartbeat | Release | Leave
MAX_REPLY_BYTES = 1 << 20
MAX_RETRY_AFTER_S = 60.0
LEAVE_S = 3.0
PASSING = (408, 425, 429)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class HttpCoordinator:
    """The coordinator at `url`. Thread-safe: the heartbeat thread shares it with the loop."""

    def __init__(
        self,
        url: str,
        transport: Transport,
        *,
        clock: Clock,
        stop: threading.Event,
        random: Uniform,
        deadline_s: float = 60.0,
        bundle: Bundle | None = None,
    ) -> None:
        """`deadline_s` bounds every call but `register`, which waits for the central to come up.

        Without a `bundle` no credentials are sent.

        Raises:
            CentralError: `url` is not an http(s) URL.
        """
        self._url = url.rstrip("/")
        try:
            parsed = httpx.URL(self._url)
        except httpx.InvalidURL as fault:
            raise CentralError(_bad_url(url)) from fault
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise CentralError(_bad_url(url))
        self._deadline_s = deadline_s
        # A proxy from the environment is for the way out of a cluster, not for this machine.
        self._http = httpx.Client(
            timeout=httpx.Timeout(transport.timeout_s, connect=min(transport.timeout_s, 10.0)),
            trust_env=parsed.host not in LOOPBACK,
            verify=True if bundle is None else bundle.tls,
        )
        self._bundle = bundle
        self._given_up: set[str] = set()  # calls that had no answer within their deadline
        self._retry = Retry(
            f"the central at {self._url}",
            first_s=transport.retry_first_s,
            max_s=transport.retry_max_s,
            clock=clock,
            stop=stop,
            random=random,
        )
        self._opening = (
            None if bundle is None else Opening(bundle.key, clock=clock, repeated=self._retry.count)
        )

    @property
    def num_retries(self) -> int:
        """Requests so far that were repeats; also of a call that was given up, and came again."""
        return self._retry.num_retries

    def register(self, message: Register) -> Registered:
        """Joins the run; waits for the central as long as it takes, and says so.

        Raises:
            Refused: with the central's reason.
            Stopped: the stop was asked for while waiting.
            CentralError: `url` answers, but is not a pww central, or not the bundle's.
        """
        return self._call("register", message, Registered, deadline_s=float("inf"))

    def acquire(self, message: Acquire) -> Acquired:
        """Asks for a lease; repeating the message is safe, its key counts once.

        Raises:
            Unreachable: no answer within the deadline; otherwise as `register`.
        """
        return self._call("acquire", message, Acquired, deadline_s=self._deadline_s)

    def heartbeat(self, message: Heartbeat) -> Instruction:
        """Renews leases and liveness, and returns the central's orders. Raises as `acquire`."""
        return self._call("heartbeat", message, Instruction, deadline_s=self._deadline_s)

    def release(self, message: Release) -> Done:
        """Gives leases back. Raises as `acquire`."""
        return self._call("release", message, Done, deadline_s=self._deadline_s)

    def leave(self, message: Leave) -> Done:
        """Says goodbye; takes a few seconds at most. Raises as `acquire`."""
        return self._call("leave", message, Done, deadline_s=LEAVE_S, timeout_s=LEAVE_S)

    def authorize(self, sender: Sender, refused: str = "", /) -> str:
        """The Authorization header of `sender` for the central's other ports; "" without a bundle.

        `refused` is one that was not taken. Raises as `acquire`.
        """
        if self._opening is None:
            return ""
        opening = self._opening
        return self._retry.run(
            lambda: opening.header(sender, self._open, refused=refused),
            what="opening a session",
            deadline_s=self._deadline_s,
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _call(
        self,
        name: str,
        message: Call,
        reply: type[Reply],
        *,
        deadline_s: float,
        timeout_s: float = 0.0,
    ) -> Reply:
        body = message.model_dump_json().encode()
        if name in self._given_up:
            self._retry.count()
            self._given_up.discard(name)
        try:
            return self._retry.run(
                lambda: self._once(name, message, body, reply, timeout_s),
                what=name,
                deadline_s=deadline_s,
            )
        except Unreachable:
            self._given_up.add(name)
            raise

    def _once(
        self, name: str, message: Call, body: bytes, reply: type[Reply], timeout_s: float
    ) -> Reply:
        """One request, under a session where there is a bundle. 0 for `timeout_s`: our own."""
        if self._opening is None:
            return self._ask(name, body, reply, timeout_s)
        post = partial(self._open, timeout_s=timeout_s)
        header = self._opening.header(message, post)
        try:
            return self._ask(name, body, reply, timeout_s, authorization=header)
        except Refused as fault:
            if fault.code != "unauthorised":
                raise
        header = self._opening.header(message, post, refused=header)
        self._retry.count()
        return self._ask(name, body, reply, timeout_s, authorization=header)

    def _open(self, opening: Open, *, timeout_s: float = 0.0) -> Opened:
        return self._ask("open", opening.model_dump_json().encode(), Opened, timeout_s)

    def _ask(
        self,
        name: str,
        body: bytes,
        reply: type[Reply],
        timeout_s: float,
        *,
        authorization: str = "",
    ) -> Reply:
        """One HTTP request and its answer."""
        timeout = httpx.Timeout(timeout_s) if timeout_s else self._http.timeout
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if authorization:
            headers["authorization"] = authorization
        url = f"{self._url}/v1/{name}"
        asked_s = 0.0 if self._bundle is None else self._bundle.key.theirs.asked_s()
        try:
            with self._http.stream(
                "POST", url, content=body, headers=headers, timeout=timeout
            ) as response:
                content = self._read(response, name)
        except httpx.TransportError as fault:
            final = explain(fault, url=self._url) or not_let_through(fault, url=self._url)
            if final is not None:
                raise final from fault
            told = str(fault) or type(fault).__name__
            if isinstance(fault, httpx.RemoteProtocolError) and self._bundle is None:
                told += "; a central with keys answers https only, to a site with central.bundle"
            raise TryAgain(told) from fault
        except httpx.DecodingError as fault:
            raise self._stranger(name, f"an unreadable body ({fault})") from fault
        if self._bundle is not None:
            date = response.headers.get("date", "")
            self._bundle.key.theirs.measure(date, asked_s=asked_s)
        status = response.status_code
        if status == PROXY_ASKS:
            raise credentials_wanted(self._url)
        if status == 503 or status in PASSING:
            told = f"HTTP {status}{_reason(content)}"
            raise TryAgain(told, after_s=_retry_after_s(response, content))
        if status >= 500:
            raise TryAgain(f"HTTP {status}")
        try:
            if status == 200:
                return reply.model_validate_json(content)
            if 400 <= status < 500:
                refusal = Refusal.model_validate_json(content)
                raise Refused(
                    refusal.message, code=refusal.code, retry_after_s=refusal.retry_after_s
                )
        except ValidationError as fault:
            raise self._stranger(name, _shown(response, content)) from fault
        raise self._stranger(name, _shown(response, content))

    def _read(self, response: httpx.Response, name: str) -> bytes:
        """The whole body, unless it is larger than any reply may be."""
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > MAX_REPLY_BYTES:
                raise self._stranger(name, f"more than {MAX_REPLY_BYTES} bytes")
        return bytes(content)

    def _stranger(self, name: str, what: str) -> CentralError:
        """The answer was not one of a pww central of this version."""
        return CentralError(
            f"{self._url} answered {name} with {what}, which is no answer of a pww central of this "
            "version: check central.url, proxies in between, and that both sides run the same pww"
        )


def _bad_url(url: str) -> str:
    return f"central.url={url} is no http or https URL: give one like https://central.example:29510"


def _shown(response: httpx.Response, content: bytes) -> str:
    kind = response.headers.get("content-type", "no content type")
    return f"HTTP {response.status_code} ({kind}) {content[:80].decode('utf-8', 'replace')!r}"


def _reason(content: bytes) -> str:
    """What the central says of why to wait, if it is the central that says so."""
    try:
        return f": {Refusal.model_validate_json(content).message}"
    except ValidationError:
        return ""


def _retry_after_s(response: httpx.Response, content: bytes) -> float:
    """How long the central asked to be left alone: the refusal's value or the header's."""
    try:
        seconds = Refusal.model_validate_json(content).retry_after_s
    except ValidationError:
        text = response.headers.get("retry-after", "0")
        seconds = float(text) if text.isascii() and text.isdigit() else 0.0
    return min(seconds, MAX_RETRY_AFTER_S)
