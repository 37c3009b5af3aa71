"""The coordinator over HTTP: five POSTs with JSON, `/health` and `/status`, nothing else.

A body is validated by its strict message class before anything happens, so a name such as `../x`
never goes further. Refusals are 4xx with a `Refusal`; a fault of ours is a 500 without its text,
which goes to the log. Bodies above 1 MiB are read to their end (up to a limit) and dropped, so that
the sender sees the refusal instead of a broken connection.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import assert_never

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pww.central.coordinator import Coordinator
from pww.errors import PwwError, Refused
from pww.wire import (
    Acquire,
    Heartbeat,
    Leave,
    Message,
    Refusal,
    Register,
    Release,
)

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 2**20
DRAIN_BYTES = 2**26
"""How much of a body that is too large is read and dropped before the connection is."""
Call = Register | Acquire | Heartbeat | Release | Leave


def coordinator_app(coordinator: Coordinator) -> ASGIApp:
    """The ASGI app of one coordinator."""

    def answer(message: Call) -> Message:
        match message:
            case Register():
                return coordinator.register(message)
            case Acquire():
                return coordinator.acquire(message)
            case Heartbeat():
                return coordinator.heartbeat(message)
            case Release():
                return coordinator.release(message)
            case Leave():
                return coordinator.leave(message)
            case _:
                assert_never(message)

    def endpoint(kind: type[Call]) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            try:
                body = await _body(request)
                message = kind.model_validate_json(body)
                reply = await run_in_threadpool(answer, message)
            except Refused as why:
                return _refusal(why)
            except ValidationError as why:
                return _refusal(Refused(_told(kind, why), code="bad_request"))
            except ClientDisconnect:
                return Response(status_code=400)
            except PwwError as why:  # a full disk, say; the caller tries again
                log.error("%s failed: %s", request.url.path, why)
                return _fault()
            except Exception:
                log.exception("%s failed", request.url.path)
                return _fault()
            return Response(reply.model_dump_json(), media_type="application/json")

        return call

    async def health(request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def status(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(coordinator.status))
        except Exception:
            log.exception("/status failed")
            return _fault()

    calls: list[tuple[str, type[Call]]] = [
        ("register", Register),
        ("acquire", Acquire),
        ("heartbeat", Heartbeat),
        ("release", Release),
        ("leave", Leave),
    ]
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/status", status),
            *(Route(f"/v1/{name}", endpoint(kind), methods=["POST"]) for name, kind in calls),
        ],
        exception_handlers={HTTPException: _no_route},
    )


async def _body(request: Request) -> bytes:
    """The body, if it is small enough.

    Raises:
        Refused: too_large.
    """
    chunks: list[bytes] = []
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes <= MAX_BODY_BYTES:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size_bytes > DRAIN_BYTES:
            break
    if size_bytes > MAX_BODY_BYTES:
        raise Refused(
            f"the body has more than {MAX_BODY_BYTES} bytes, which no lease message has: "
            "payloads go to the aggregator",
            code="too_large",
        )
    return b"".join(chunks)


def _told(kind: type[Call], why: ValidationError) -> str:
    """The first faults of a message, without echoing what was sent."""
    faults = [
        f"{'.'.join(str(part)[:40] for part in fault['loc']) or 'body'}: {fault['msg'][:200]}"
        for fault in why.errors(include_url=False, include_input=False, include_context=False)[:5]
    ]
    return f"not a valid {kind.__name__}: {'; '.join(faults)}"


def _refusal(why: Refused) -> Response:
    body = Refusal.model_validate(
        {"code": why.code, "message": str(why), "retry_after_s": why.retry_after_s}
    )
    headers: dict[str, str] = {}
    match body.code:
        case "bad_request":
            status = 400
        case "too_large":
            status = 413
            headers["connection"] = "close"  # or the server would go on reading an endless body
        case _:
            status = 409
    return Response(body.model_dump_json(), status, headers=headers, media_type="application/json")


def _fault() -> Response:
    told = {"error": "the central failed to answer; its log says why, try again later"}
    return JSONResponse(told, status_code=500)


async def _no_route(request: Request, why: Exception) -> Response:
    status = why.status_code if isinstance(why, HTTPException) else 404
    body = Refusal(
        code="bad_request",
        message="no such route here: POST /v1/{register,acquire,heartbeat,release,leave}, "
        "GET /health, GET /status",
    )
    return Response(body.model_dump_json(), status_code=status, media_type="application/json")
