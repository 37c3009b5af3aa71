"""The socket of a request, lent to threads: what the system does with it may wait for a disk there.

The loop that serves everybody only waits for the peer. Bytes that one thread takes from a socket,
sums and writes are copied where a core has them at hand; handed from the loop to a thread they are
fetched from memory twice more. TLS has to see the bytes, so its sockets are not lent.
"""

import asyncio
import os
import select
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pww.transport.file_part import FilePart, Unable
from pww.transport.raw_body import Gone, HttpProtocol, protocol_of

T = TypeVar("T")
FLUSHES = 5
"""The loop may first have to send the head of an answer."""


class LentSocket:
    """For as long as a request's body or its answer's lasts. Close it in any case."""

    def __init__(self, http: HttpProtocol, cycle: RequestResponseCycle) -> None:
        """`cycle` is the request's own: `http` may have read the next one's head since."""
        self.http, self.cycle, self._left = http, cycle, False
        plain = http.transport.get_extra_info("socket")
        self._socket, self.fd = plain, os.dup(plain.fileno())  # the loop watches its own

    @property
    def over(self) -> bool:
        """Whether nobody waits for a thread's work here any more: it is to stop where it is.

        Until then this descriptor keeps the connection open, though the loop has hung up.
        """
        return self._left or self.cycle.disconnected

    def close(self) -> None:
        """Gives it back."""
        os.close(self.fd)

    def wake_at(self, size_bytes: int) -> None:
        """It counts as readable from so many bytes on, of which there is room for more."""
        with suppress(OSError):  # closed by the peer: that is readable too
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    async def run(self, disk: Executor, work: Callable[[], T]) -> T:
        """What `work` returns, in a thread. However this ends, no thread is at it afterwards.

        `work` looks at `over` often, and raises `Gone` for whatever fault the socket has.

        Raises:
            Gone: the peer hung up, as `work` or the loop saw.
            Exception: whatever else `work` raises.
        """
        working = self.http.loop.run_in_executor(disk, work)
        try:
            result = await asyncio.shield(working)
        except Gone:
            self.http.transport.abort()
            self.cycle.disconnected = True  # as the loop would see by itself, a moment later
            raise
        except asyncio.CancelledError:
            self._left = True
            raise
        finally:
            while not working.done():  # what it uses may not be closed, nor be another file then
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({working})
        if self.cycle.disconnected:
            raise Gone
        return result

    async def readable(self, silent_s: float) -> None:
        """Returns when there is something to read.

        Raises:
            TimeoutError: not for so long.
        """
        loop = self.http.loop
        await self._ready(loop.add_reader, loop.remove_reader, silent_s)

    async def writable(self, silent_s: float) -> None:
        """Returns when there is room again.

        Raises:
            TimeoutError: not for so long.
        """
        loop = self.http.loop
        await self._ready(loop.add_writer, loop.remove_writer, silent_s)

    async def _ready(
        self, watch: Callable[..., object], forget: Callable[[int], object], silent_s: float
    ) -> None:
        came = asyncio.Event()
        watch(self.fd, came.set)
        try:
            await asyncio.wait_for(came.wait(), silent_s)
        finally:
            forget(self.fd)


async def send_file(scope: Any, part: FilePart, disk: Executor, *, silent_s: float) -> int:
    """Sends `part`, or a beginning of it, as the body that the answer to `scope` has announced.

    From the page cache to the socket, past this process (`sendfile`). Returns how many bytes went;
    the others have to go by ASGI, as does the end of the answer.

    Raises:
        TimeoutError: the client took nothing for so long.
        Gone: it hung up.
        PayloadError: the file has become shorter.
        OSError: the disk failed.
    """
    http = protocol_of(scope)
    if http is None or http.secure or http.cycle.chunked_encoding:
        return 0
    cycle = http.cycle  # the next request's may come while this one's head goes out
    for _ in range(FLUSHES):
        if http.transport.get_write_buffer_size() == 0:
            break
        await asyncio.sleep(0)
    else:
        return 0
    if http.transport.is_closing():
        raise Gone
    lent, at = LentSocket(http, cycle), part.start
    try:
        while at < part.stop:
            at, able = await lent.run(disk, partial(_give, part, lent, at))
            if not able:
                break
            if at < part.stop:
                await lent.writable(silent_s)
    finally:
        lent.close()
    lent.cycle.expected_content_length -= at - part.start
    return at - part.start


def _give(part: FilePart, lent: LentSocket, at: int) -> tuple[int, bool]:
    """The first byte that the socket did not take, and whether it may take it later."""
    try:
        while at < part.stop and not lent.over:
            at += part.give(lent.fd, at)
    except BlockingIOError:
        return at, True
    except Unable:
        return at, False
    except OSError as why:
        if _closed(lent.fd):
            raise Gone from why
        raise  # the disk's
    return at, True


def _closed(sock: int) -> bool:
    """Whether the connection is over both ways, as after every fault that ends one."""
    look = select.poll()
    look.register(sock, 0)
    return bool(look.poll(0))
