"""The blob port's probe: takes bytes and forgets them, sends bytes that mean nothing.

A site measures its way to the central with it before a run depends on that way. Nothing is kept, no
disk is touched, and one request is no larger than a piece of an upload.
"""

import re
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from pww.central.blob_upload import BlobFault
from pww.transport.blob_wire import PROBE_BYTES, PROBE_ROUTE
from pww.transport.read_body import Data, read_body

BLOCK = secrets.token_bytes(1 << 16)
"""No proxy on the way can make it smaller."""
_SIZE = re.compile(rf"{PROBE_ROUTE}/([0-9]{{1,8}})\Z")
_LENGTH = re.compile(r"[0-9]{1,18}\Z")


def is_probe(path: str) -> bool:
    """Whether a request's path is the probe's."""
    return path == PROBE_ROUTE or _SIZE.match(path) is not None


async def answer(scope: Any, receive: Any, send: Any, disk: Executor, *, silent_s: float) -> None:
    """Answers one request whose path `is_probe`.

    Raises:
        BlobFault: too much, or not as `blob_wire` says, or nothing came for `silent_s`.
        Gone: the client hung up.
    """
    found = _SIZE.match(scope["path"])
    if scope["method"] == "PUT" and found is None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"").decode("latin-1")
        if not _LENGTH.match(length):
            raise BlobFault("a probe comes with Content-Length", status=400)
        try:
            size_bytes = _allowed(int(length))
            await read_body(scope, receive, size_bytes, _forget, disk, silent_s=silent_s)
        except TimeoutError:
            raise BlobFault(
                f"nothing more of the probe came for {silent_s:g} s: send it again", status=408
            ) from None
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    elif scope["method"] == "GET" and found is not None:
        await _give(send, _allowed(int(found[1])))
    else:
        raise BlobFault(
            f"no such route here: PUT {PROBE_ROUTE}, GET {PROBE_ROUTE}/SIZE", status=404
        )


def _allowed(size_bytes: int) -> int:
    if not 0 < size_bytes <= PROBE_BYTES:
        raise BlobFault(f"a probe of {size_bytes} bytes: 1 to {PROBE_BYTES}", status=413)
    return size_bytes


def _forget(bites: Sequence[Data]) -> None:
    """The answer says that they came."""


async def _give(send: Any, size_bytes: int) -> None:
    headers = [
        (b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % size_bytes),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for start in range(0, size_bytes, len(BLOCK)):
        body = BLOCK[: size_bytes - start]
        more = start + len(body) < size_bytes
        await send({"type": "http.response.body", "body": body, "more_body": more})
