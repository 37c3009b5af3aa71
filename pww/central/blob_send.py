"""An object, or a range of it, on its way out: exactly as long as announced, or broken off.

A range is announced with its CRC-32C, so that whoever gets it damaged asks for that range again
and not for all of the object. An object never changes, so each range is summed once, whoever asks
for it then; a file that somebody mended is another file.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pww.central.blob_upload import BlobFault
from pww.central.blobs import BlobStore
from pww.transport.blob_range import read_range
from pww.transport.blob_wire import ABSENT, CRC, etag
from pww.transport.file_part import FilePart
from pww.transport.lent_socket import send_file
from pww.transport.raw_body import BITE

T = TypeVar("T")
MOST_SUMMED = 64 << 20
"""A longer range goes without a sum: the answer would begin late. Nobody of ours asks for one."""
MAX_KEPT = 1 << 16
"""Sums, of about 300 bytes each."""


class Sums:
    """CRC-32C of the ranges of objects, the last `MAX_KEPT` of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str | int, ...], int] = {}

    def of(self, digest: str, part: FilePart) -> int:
        """The sum of a part of the object.

        Raises:
            PayloadError: its file has become shorter.
        """
        seen = os.fstat(part.fd)
        key = (digest, seen.st_ino, seen.st_mtime_ns, part.start, part.stop)
        with self._lock:
            known = self._kept.get(key)
        if known is not None:
            return known
        found = part.crc32c()
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return found


class Sender:
    """Answers downloads from a store."""

    def __init__(
        self, store: BlobStore, disk: ThreadPoolExecutor, movers: ThreadPoolExecutor
    ) -> None:
        """`disk` are threads for what waits for the disk; `movers`, which all transfers share and
        which are few, send what was read for its sum a moment ago.
        """
        self._store, self._disk, self._movers, self._sums = store, disk, movers, Sums()

    async def answer(self, digest: str, scope: Any, send: Any, *, silent_s: float) -> None:
        """The answer to a GET or HEAD of an object.

        Raises:
            BlobFault: there is none.
            Gone, TimeoutError: the client hung up, or took nothing for `silent_s`.
            PayloadError, OSError: the disk failed; an answer that was begun is to be broken off.
        """
        method, headers = scope["method"], dict(scope["headers"])
        path = self._store.path(digest)
        if path is None:
            raise BlobFault(
                f"no object {digest[:16]}… here: it was never complete, or was removed",
                status=ABSENT,
            )
        fd = await self._aside(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            size_bytes = os.fstat(fd).st_size
            tag = etag(digest).encode()
            wanted = headers.get(b"range", b"").decode("latin-1")
            if headers.get(b"if-range", tag) != tag:
                wanted = ""  # of another object: the whole, by the rule
            start, stop, status = read_range(wanted, size_bytes)
            told = [(b"etag", tag), (b"accept-ranges", b"bytes")]
            told.append((b"content-type", b"application/octet-stream"))
            told.append((b"content-length", b"%d" % (stop - start)))
            if status == 206:
                told.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, size_bytes)))
                if method == "GET" and stop - start <= MOST_SUMMED:
                    part = FilePart(fd, start, stop)
                    crc = await self._aside(partial(self._sums.of, digest, part))
                    told.append((CRC.encode(), b"%08x" % crc))
            elif status == 416:
                told.append((b"content-range", b"bytes */%d" % size_bytes))
            await send({"type": "http.response.start", "status": status, "headers": told})
            if method == "GET":
                part = FilePart(fd, start, stop)
                start += await send_file(scope, part, self._movers, silent_s=silent_s)
            if method == "HEAD" or start == stop:
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._send(fd, start, stop, send)
        finally:
            os.close(fd)

    async def _send(self, fd: int, start: int, stop: int, send: Any) -> None:
        """Reads the next bite while one is sent."""
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._disk, os.pread, fd, min(BITE, stop - start), start)
        try:
            while True:
                bite = await reading
                start += len(bite)
                if not bite and start < stop:
                    raise OSError("a file was cut short by somebody else")
                if start < stop:
                    reading = loop.run_in_executor(
                        self._disk, os.pread, fd, min(BITE, stop - start), start
                    )
                more = start < stop
                await send({"type": "http.response.body", "body": bite, "more_body": more})
                if not more:
                    return
        finally:
            await asyncio.wait({reading})  # it may not read a file that is closed

    async def _aside(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, call)
