"""The blob store over HTTP: short requests, bounded memory, every name checked (`blob_wire`).

A plain ASGI app, whose threads move bytes between files and sockets where the server lends these;
elsewhere they read or write one megabyte while the loop sends or receives the next. Whoever asks
for more than `/health` is checked at the door before anything of the request is read. A client that
stops in the middle is hung up on.
"""

import asyncio
import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from pww.central import blob_probe
from pww.central.blob_send import Sender
from pww.central.blob_upload import BlobFault, Upload
from pww.central.blobs import BlobStore
from pww.central.door import Identity
from pww.central.strangers import Strangers, peer_of
from pww.clock import Clock
from pww.errors import PwwError, Refused
from pww.transport.blob_wire import BEGIN_AGAIN, BUSY, FULL
from pww.transport.raw_body import Gone
from pww.transport.read_body import read_body
from pww.wire import Refusal

log = logging.getLogger(__name__)

T = TypeVar("T")
SILENT_S = 20.0
"""A client that sends or takes nothing for so long is not waited for."""
COMMIT_S = 5.0
"""A commit that takes longer is answered by `BUSY`, so that no request is long."""
RETRY_FULL_S, RETRY_BUSY_S = 5, 1
THREADS = 8
MOVERS = min(THREADS, (os.cpu_count() or 1) + 1)
"""Threads that move bytes: what they wait for is a core more often than a disk."""
JSON = b"application/json"
_OBJECT = re.compile(r"/v1/blobs/([0-9a-f]{64})\Z")
_UPLOAD = re.compile(
    r"/v1/blobs/([0-9a-f]{64})/([0-9]{1,18})"
    r"(?:/(?:(commit)|([0-9]{1,10})(?:/([0-9a-f]{8}))?))?\Z"
)
ROUTES = (
    "no such route here: POST /v1/blobs/DIGEST/SIZE, PUT /v1/blobs/DIGEST/SIZE/PIECE, "
    "POST /v1/blobs/DIGEST/SIZE/commit, POST /v1/blobs/DIGEST/SIZE/PIECE/CRC32C, "
    "DELETE /v1/blobs/DIGEST/SIZE, GET /v1/blobs/DIGEST, PUT /v1/blobs/probe, "
    "GET /v1/blobs/probe/SIZE, GET /health"
)
Headers = dict[bytes, bytes]


class Guard(Protocol):
    """Who lets requests in: a `Door`."""

    def check(self, authorization: str, path: str, *, peer: str = "") -> Identity:
        """Who a request is from, by its Authorization header; raises Refused."""


class BlobApp:
    """The ASGI app of one store. Without a `door` everybody is let in: loopback only."""

    def __init__(self, store: BlobStore, *, clock: Clock, door: Guard | None = None) -> None:
        self._store, self._door = store, door
        self._strangers = Strangers(clock)
        self._disk = ThreadPoolExecutor(THREADS, thread_name_prefix="blob-disk")
        self._movers = ThreadPoolExecutor(MOVERS, thread_name_prefix="blob-move")
        self._sender = Sender(store, self._disk, self._movers)
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="blob-hash")
        self._commits: dict[tuple[str, int, str], asyncio.Future[Any]] = {}

    def close(self) -> None:
        """Ends the threads; call it when nothing serves the app any more."""
        self._disk.shutdown(cancel_futures=True)
        self._movers.shutdown(cancel_futures=True)
        self._hasher.shutdown(cancel_futures=True)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        peer = peer_of(scope)
        started = False

        async def send_once(event: Any) -> None:
            nonlocal started
            started = True
            await asyncio.wait_for(send(event), SILENT_S)

        try:
            await self._respond(scope, receive, send_once, peer)
        except (Gone, asyncio.CancelledError):  # the client hung up, or the server ends
            return
        except Exception as fault:
            if started:  # an answer cannot be taken back: break it, so that the client sees it
                log.warning("an answer to %s broke off: %r", peer, fault)
                return
            status, body = self._failure(fault, peer)
            await _answer(send_once, status, body)

    def _failure(self, fault: Exception, peer: str) -> tuple[int, bytes]:
        """What a client is told of a fault; ours go to the log."""
        match fault:
            case Refused():  # the door has logged it
                status = {"unauthorised": 401, "too_many": 429}.get(fault.code, 400)
                return status, _refusal(str(fault), fault.code, fault.retry_after_s)
            case BlobFault():
                if fault.status != BEGIN_AGAIN:  # what a client of ours is told now and then
                    self._strangers.note(peer, f"{fault.status}", str(fault))
                code = "too_large" if fault.status == 413 else "bad_request"
                return fault.status, _refusal(str(fault), code)
            case PwwError() | OSError():
                log.error("the blob store failed: %s", fault)
            case _:
                log.exception("the blob store failed", exc_info=fault)
        return 500, _refusal("the central failed to answer; its log says why, try again later")

    async def _respond(self, scope: Any, receive: Any, send: Any, peer: str) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/health" and method in ("GET", "HEAD"):
            await _answer(send, 200, b'{"ok":true}')
            return
        headers: Headers = dict(scope["headers"])
        replica = ""
        if self._door is not None:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            replica = self._door.check(authorization, path, peer=peer).replica
        if blob_probe.is_probe(path):
            await blob_probe.answer(scope, receive, send, self._movers, silent_s=SILENT_S)
            return
        found = _OBJECT.match(path)
        if found and method in ("GET", "HEAD"):
            await self._sender.answer(found[1], scope, send, silent_s=SILENT_S)
            return
        found = _UPLOAD.match(path)
        if not found:
            raise BlobFault(ROUTES, status=404)
        status, body = await self._about_upload(found, method, replica, headers, scope, receive)
        await _answer(send, status, body)

    async def _about_upload(
        self, found: re.Match[str], method: str, replica: str, headers: Headers, scope: Any,
        receive: Any,
    ) -> tuple[int, bytes]:  # fmt: skip
        """What is answered to a request of an upload.

        Raises:
            BlobFault: it is refused, or there is no such request.
        """
        digest, size_bytes = found[1], int(found[2])
        find = partial(self._store.upload, digest, size_bytes, replica=replica)
        match method, found[3], found[4], found[5]:
            case "PUT", None, str(piece), None:
                upload = await self._aside(find)
                await self._take_piece(upload, int(piece), headers, scope, receive)
                return 204, b""
            case "POST", None, str(piece), str(crc):
                upload = await self._aside(find)
                await self._aside(partial(upload.check, int(piece), int(crc, 16)))
                return 204, b""
            case "POST", None, None, None:
                key = (digest, size_bytes, replica)
                if key in self._commits and self._commits[key].done():
                    self._commits.pop(key).exception()  # of an upload whose client never heard it
                begin = partial(self._store.begin, digest, size_bytes, replica=replica)
                state = await self._aside(begin)
                return 200, state.model_dump_json().encode()
            case "POST", "commit", None, None:
                return await self._commit(digest, size_bytes, replica)
            case "DELETE", None, None, None:
                forget = partial(self._store.forget, digest, size_bytes, replica=replica)
                await self._aside(forget)
                return 204, b""
        raise BlobFault(ROUTES, status=404)

    async def _aside(self, call: Callable[[], T]) -> T:
        """Runs what waits for the disk in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, call)

    # ---------------------------------------------------------------------------------- uploads

    async def _take_piece(
        self, upload: Upload, number: int, headers: Headers, scope: Any, receive: Any
    ) -> None:
        """Reads and keeps one piece.

        Raises:
            BlobFault: it is not what it should be.
        """
        length = headers.get(b"content-length", b"").decode("latin-1")
        if not re.match(r"[0-9]{1,18}\Z", length):
            raise BlobFault("a piece comes with Content-Length", status=400)
        if int(length) > upload.piece_bytes:
            raise BlobFault(
                f"{length} bytes, but a piece has {upload.piece_bytes} at most", status=413
            )
        writer = upload.writer(number)
        if writer is None:
            return  # it is there: the reply to an earlier try was lost; the server drops the body
        try:
            await read_body(
                scope, receive, int(length), writer.write, self._movers, silent_s=SILENT_S
            )
            await self._aside(writer.finish)
        except BaseException as fault:
            writer.drop()
            if isinstance(fault, TimeoutError):
                raise _silent() from None
            raise
        self._hasher.submit(upload.advance)

    async def _commit(self, digest: str, size_bytes: int, replica: str) -> tuple[int, bytes]:
        """One check for all who ask; its outcome is kept until somebody heard it."""
        key = (digest, size_bytes, replica)
        running = self._commits.get(key)
        if running is None:
            call = partial(self._store.commit, digest, size_bytes, replica=replica)
            running = asyncio.get_running_loop().run_in_executor(self._disk, call)
            self._commits[key] = running
        await asyncio.wait({running}, timeout=COMMIT_S)
        if not running.done():
            return BUSY, _refusal("the object is being checked: ask again")
        self._commits.pop(key, None)
        return 200, running.result().model_dump_json().encode()


def _silent() -> BlobFault:
    return BlobFault(
        f"nothing more of the piece came for {SILENT_S:.0f} s: send it again", status=408
    )


async def _answer(send: Any, status: int, body: bytes) -> None:
    """A whole small answer."""
    headers = []
    if status != 204:
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    if status == 413:
        headers.append((b"connection", b"close"))  # or an endless body would be read on
    if status in (FULL, BUSY):
        headers.append((b"retry-after", b"%d" % (RETRY_FULL_S if status == FULL else RETRY_BUSY_S)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _refusal(message: str, code: str = "bad_request", retry_after_s: float = 0.0) -> bytes:
    told = {"code": code, "message": message, "retry_after_s": retry_after_s}
    return Refusal.model_validate(told).model_dump_json().encode()
