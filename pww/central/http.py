"""The coordinator over HTTP: five POSTs with JSON, `/v1/open`, `/health /status /metrics`.

A plain ASGI app: at thousands of durable requests a second a framework's routing would cost more
than the leases. Whoever asks for more than `/health` is checked at the door before anything of the
request is read; a body is validated by its strict message class before anything happens, so a name
such as `../x` never goes further. Refusals are 4xx with a `Refusal`; a fault of ours is a 500
without its text, which goes to the log. Bodies above 1 MiB are read to their end (up to a limit)
and dropped, so that the sender sees the refusal instead of a broken connection.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import ValidationError

from pww.central.batcher import Batcher
from pww.central.coordinator import Coordinator
from pww.central.door import Door, Identity
from pww.central.prometheus import exposition
from pww.central.strangers import Strangers
from pww.clock import Clock
from pww.errors import PwwError, Refused
from pww.transport.site_key import Open
from pww.wire import Acquire, Call, Heartbeat, Leave, Refusal, Register, Release

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
DRAIN_BYTES = 2**26
"""How much of a body that is too large is read and dropped before the connection is."""
BODY_S = 20.0
"""A body that does not go on for so long is not waited for."""
JSON, TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
CALLS: dict[str, type[Call]] = {
    "/v1/register": Register,
    "/v1/acquire": Acquire,
    "/v1/heartbeat": Heartbeat,
    "/v1/release": Release,
    "/v1/leave": Leave,
}
SHOWN = ("/status", "/metrics")
STATUS = {
    "bad_request": 400, "unauthorised": 401, "too_large": 413, "too_many": 429, "not_ready": 503,
}  # fmt: skip
"""HTTP status by refusal code; every other one is a 409."""


class CoordinatorApp:
    """The ASGI app of one coordinator. Without a `door` everybody is let in: loopback only."""

    def __init__(self, coordinator: Coordinator, door: Door | None = None, *, clock: Clock) -> None:
        self._coordinator, self._door = coordinator, door
        self._strangers = Strangers(clock)
        self._batcher = Batcher(coordinator.answer)

    def close(self) -> None:
        """Ends the thread that answers; call it when nothing serves the app any more."""
        self._batcher.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        try:
            status, kind, body = await self._respond(scope, path, receive)
        except (_Gone, asyncio.CancelledError):  # the peer hung up, or the server ends
            return
        except Refused as why:
            if why.code in ("bad_request", "too_large"):  # the rest is an answer, or the door's
                self._strangers.note(_peer(scope), why.code, f"{path[:100]!r}: {why}")
            status, kind, body = _refusal(why)
        except PwwError as why:  # a full disk, say; the caller tries again
            log.error("%.100s failed: %s", path, why)
            status, kind, body = _fault()
        except Exception:
            log.exception("%.100s failed", path)
            status, kind, body = _fault()
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        if status == 413:
            headers.append((b"connection", b"close"))  # or an endless body would be read on
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Any, path: str, receive: Any) -> tuple[int, bytes, bytes]:
        method = scope["method"]
        if path == "/health" and method == "GET":
            return 200, JSON, b'{"ok":true}'
        peer = _peer(scope)
        call = CALLS.get(path)
        if call is not None and method == "POST":
            identity = self._identity(scope, path, peer)
            message = _parsed(call, await _body(receive))
            if self._door is not None and identity is not None:
                self._door.match(identity, message, peer=peer)
            reply = await self._batcher.answer(message)
            return 200, JSON, reply.model_dump_json().encode()
        if path == "/v1/open" and method == "POST" and self._door is not None:
            opening = _parsed(Open, await _body(receive))
            opened = await _aside(partial(self._door.open, opening, peer=peer))
            return 200, JSON, opened.model_dump_json().encode()
        self._identity(scope, path, peer)
        if path in SHOWN and method == "GET":
            status = await _aside(self._coordinator.status)
            if path == "/status":
                return 200, JSON, json.dumps(status).encode()
            return 200, TEXT, exposition(status).encode()
        return _no_route(405 if path in CALLS or path in SHOWN or path == "/health" else 404)

    def _identity(self, scope: Any, path: str, peer: str) -> Identity | None:
        """Who asks; None where there is no door.

        Raises:
            Refused: not let in.
        """
        if self._door is None:
            return None
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        return self._door.check(authorization, path, peer=peer)


class _Gone(Exception):
    """The client hung up in the middle of its body."""


def _peer(scope: Any) -> str:
    return str((scope.get("client") or ("",))[0])


async def _aside(call: Callable[[], Any]) -> Any:
    """Runs what may wait for the books in another thread."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def _body(receive: Any) -> bytes:
    """The body, if it is small enough.

    Raises:
        Refused: too_large.
    """
    chunks: list[bytes] = []
    size_bytes, more = 0, True
    while more and size_bytes <= DRAIN_BYTES:
        try:
            event = await asyncio.wait_for(receive(), BODY_S)
        except TimeoutError:
            raise Refused(
                f"nothing more of the body came for {BODY_S:.0f} s: send it again", code="too_large"
            ) from None
        if event["type"] != "http.request":
            raise _Gone
        chunk, more = event.get("body", b""), event.get("more_body", False)
        size_bytes += len(chunk)
        if size_bytes <= MAX_BODY_BYTES:
            chunks.append(chunk)
        else:
            chunks.clear()
    if size_bytes > MAX_BODY_BYTES:
        raise Refused(
            f"the body has more than {MAX_BODY_BYTES} bytes, which no lease message has: "
            "payloads go to the aggregator",
            code="too_large",
        )
    return b"".join(chunks)


def _parsed(kind: Any, body: bytes) -> Any:
    """The message in a body.

    Raises:
        Refused: bad_request; the first faults, without echoing what was sent.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as why:
        faults = [
            f"{'.'.join(str(part)[:40] for part in fault['loc']) or 'body'}: {fault['msg'][:200]}"
            for fault in why.errors(include_url=False, include_input=False, include_context=False)
        ]
        told = f"not a valid {kind.__name__}: {'; '.join(faults[:5])}"
        raise Refused(told, code="bad_request") from None


def _refusal(why: Refused) -> tuple[int, bytes, bytes]:
    body = Refusal.model_validate(
        {"code": why.code, "message": str(why), "retry_after_s": why.retry_after_s}
    )
    return STATUS.get(body.code, 409), JSON, body.model_dump_json().encode()


def _fault() -> tuple[int, bytes, bytes]:
    told = {"error": "the central failed to answer; its log says why, try again later"}
    return 500, JSON, json.dumps(told).encode()


def _no_route(status: int) -> tuple[int, bytes, bytes]:
    body = Refusal(
        code="bad_request",
        message="no such route here: POST /v1/{open,register,acquire,heartbeat,release,leave}, "
        "GET /health, GET /status, GET /metrics",
    )
    return status, JSON, body.model_dump_json().encode()
