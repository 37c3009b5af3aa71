"""A request's body for whoever takes it in threads, the quickest way that its server offers.

From the socket by the thread that also writes it; through TLS from the loop, which decrypts into a
few buffers; and by ASGI where a server lends nothing.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pww.transport.lent_socket import LentSocket
from pww.transport.memory import thread_buffer
from pww.transport.raw_body import BITE, Gone, HttpProtocol, RawBody, protocol_of

SLICE = 2 << 20
"""Taken from the socket at once: threads that seldom meet seldom wait for each other."""
PAGE = 4096
PAUSE_S, MOST_AWAITED = 0.05, 512 << 10
"""Nobody is woken for less than comes in this time, or this much: a wake costs a copy."""
GLANCE_S = 1.0
"""What came and was too little to wake anybody is seen within this."""
ROOM = 4 << 20
"""The system makes room for so much of a body that is no trickle: its sender need not wait."""
Data = bytes | NDArray[np.uint8]
Sink = Callable[[Sequence[Data]], None]
"""Takes the next bytes, which last until it returns; in threads, one call at a time."""


async def read_body(
    scope: Any, receive: Any, size_bytes: int, sink: Sink, disk: Executor, *, silent_s: float
) -> None:
    """Has `sink` take the body of the request `scope`, which announced `size_bytes`.

    What it does not take because it raised is dropped, and the connection serves on.

    Raises:
        TimeoutError: the client sent nothing for so long.
        Gone: it hung up.
        Exception: as `sink`.
    """
    http = protocol_of(scope)
    if http is None or not http.lends():
        await _by_asgi(receive, sink, disk, silent_s)
    elif http.secure:
        await _by_loop(RawBody(http, size_bytes), sink, disk, silent_s)
    else:
        body = _Body(http, size_bytes, sink)
        try:
            await body.read(disk, silent_s)
        finally:
            body.end()


class _Body:
    """One body that threads take from its socket."""

    def __init__(self, http: HttpProtocol, size_bytes: int, sink: Sink) -> None:
        self._http, self._sink = http, sink
        self._early, self._left = http.take_over(size_bytes)
        self._at = 0  # of the body; where a byte lies in a page of the file if pieces begin pages
        self._awaited = 1
        self._lent = LentSocket(http, http.cycle)

    async def read(self, disk: Executor, silent_s: float) -> None:
        clock = self._http.loop.time
        since_s = clock()
        while True:
            before = self._at
            await self._lent.run(disk, self._take)
            if not self._left:
                return
            now_s = clock()
            rate = (self._at - before) / max(now_s - since_s, 1e-3)
            self._wake_at(min(int(rate * PAUSE_S), MOST_AWAITED))
            since_s = now_s
            try:
                limit_s = silent_s if self._awaited == 1 else min(GLANCE_S, silent_s / 2)
                await self._lent.readable(limit_s)
            except TimeoutError:
                if self._awaited == 1:
                    raise
                self._wake_at(1)  # there may be some, if little: then it is there at once
                await self._lent.readable(silent_s - limit_s)

    def _take(self) -> None:
        """Has the sink take what there is; in a thread."""
        if self._early:
            early, self._early = self._early, b""
            self._at = len(early)
            self._sink([early])
        buffer = thread_buffer(PAGE + SLICE)
        while self._left and not self._lent.over:
            place = self._at % PAGE  # as in the file: or the system copies at a third of its speed
            room = buffer[place : place + min(SLICE, self._left)]
            try:
                got = os.readv(self._lent.fd, [room])
            except BlockingIOError:
                return
            except OSError as why:
                raise Gone from why
            if got == 0:
                raise Gone
            self._at, self._left = self._at + got, self._left - got
            self._sink([np.frombuffer(room[:got], dtype=np.uint8)])

    def _wake_at(self, size_bytes: int) -> None:
        size_bytes = max(min(size_bytes, self._left), 1)
        if size_bytes == self._awaited:
            return
        if self._awaited == 1:
            self._lent.wake_at(ROOM)
        self._awaited = size_bytes
        self._lent.wake_at(size_bytes)

    def end(self) -> None:
        """Gives the connection back; what of the body is still to come is skipped."""
        self._wake_at(1)
        self._lent.close()
        cycle = self._lent.cycle
        if cycle.disconnected:
            return
        if self._left:
            RawBody(self._http, self._left).end()
            return
        cycle.more_body = False
        cycle.message_event.set()
        self._http.flow.resume_reading()


async def _by_loop(body: RawBody, sink: Sink, disk: Executor, silent_s: float) -> None:
    """Takes a bite while the next one comes."""
    loop = asyncio.get_running_loop()
    taking: asyncio.Future[None] | None = None
    try:
        while (bite := await body.next(silent_s)) is not None:
            if taking is not None:
                await taking
            taking = loop.run_in_executor(disk, sink, [bite])
    finally:
        if taking is not None:
            await asyncio.wait({taking})  # it reads from the body's memory
            taking.exception()  # the client who left is not told; nobody else need be
        body.end()
    if taking is not None:
        await taking


async def _by_asgi(receive: Any, sink: Sink, disk: Executor, silent_s: float) -> None:
    """From a server that lends nothing: a bite is taken while the next one comes."""
    loop = asyncio.get_running_loop()
    taking: asyncio.Future[None] | None = None
    bite: list[bytes] = []  # as they came: joining them would be one more copy
    size_bytes, more = 0, True
    try:
        async with asyncio.timeout(silent_s) as limit:
            while more:
                event = await receive()
                limit.reschedule(loop.time() + silent_s)
                if event["type"] != "http.request":
                    raise Gone
                bite.append(event.get("body", b""))
                size_bytes += len(bite[-1])
                more = event.get("more_body", False)
                if size_bytes >= BITE or not more:
                    if taking is not None:
                        await taking
                    taking = loop.run_in_executor(disk, sink, bite)
                    bite, size_bytes = [], 0
    finally:
        if taking is not None:
            await taking
