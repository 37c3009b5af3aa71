"""A request's body straight from the socket into a few buffers, for apps that want it so.

Through ASGI every byte of a body is copied four times by the one thread that serves everybody.
`HttpProtocol` is uvicorn's, and lends the connection to a `RawBody` for as long as a body lasts:
the system writes into the app's own memory. Where a server does not offer it (`take_body` is None),
an app has ASGI's way.
"""

import asyncio
import socket
from collections import deque
from typing import Any

import httptools
import numpy as np
from numpy.typing import NDArray
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pww.transport.memory import aligned_buffer

RAW_BODY = "pww.raw_body"
BITE = 1 << 20
"""Handed over together."""
MAX_KEPT = 32
MOST_AWAITED = 512 << 10
"""The loop is not woken for less of a body that comes fast: a wake costs as much as the copy."""
GLANCE_S = 1.0
"""What came and was too little to wake the loop is seen within this."""
FAST = 32 << 10
"""A body comes fast if so much was there when the loop looked."""
ROOM = 4 << 20
"""The system makes room for so much of a body that comes fast: its sender need not wait for us."""
Bite = NDArray[np.uint8]
_kept: deque[Bite] = deque(maxlen=MAX_KEPT)  # fresh pages cost as much as a copy


class Gone(Exception):
    """The client hung up in the middle."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, with the extension."""

    def on_message_begin(self) -> None:
        """Offers the extension to the app."""
        super().on_message_begin()
        self.scope["extensions"] = {RAW_BODY: self}  # type: ignore[dict-item]

    def lend(self, headers: Any, size_bytes: int) -> "RawBody | None":
        """The body of the request with these headers, of so many bytes; None if not so.

        It has to be the last that came: what follows a body in the socket is not for its app.
        """
        odd = any(name in (b"transfer-encoding", b"expect") for name, _ in headers)
        if odd or headers is not self.headers or self.transport.is_closing():
            return None
        return RawBody(self, size_bytes)


def take_body(scope: Any, size_bytes: int) -> "RawBody | None":
    """The body of the request of `scope`, if the server lends it; `end` it in any case."""
    protocol = (scope.get("extensions") or {}).get(RAW_BODY)
    if not isinstance(protocol, HttpProtocol):
        return None
    return protocol.lend(scope["headers"], size_bytes)


class RawBody(asyncio.BufferedProtocol):
    """One body on its way in. Everything happens in the event loop's thread."""

    def __init__(self, http: HttpProtocol, size_bytes: int) -> None:
        self._http, self._cycle, self._loop = http, http.cycle, http.loop
        self._transport: Any = http.transport
        early = bytes(self._cycle.body)
        self._cycle.body = bytearray()
        self._left = size_bytes - len(early) if self._cycle.more_body else 0
        self._ready: deque[tuple[Bite, Bite | None]] = deque()  # and the buffer they are in
        if early:
            self._ready.append((np.frombuffer(early, dtype=np.uint8), None))
        self._free: list[Bite] = []
        self._lent: deque[Bite] = deque()
        self._now: Bite | None = None
        tls = self._transport.get_extra_info("ssl_object") is not None
        self._plain = None if tls else self._transport.get_extra_info("socket")
        self._awaited = 1
        self._roomy = False
        self._filled = 0
        self._lost = self._skips = False
        self._event, self._heard_s = asyncio.Event(), self._loop.time()
        if self._left:
            self._free = [_buffer(), _buffer()]
            http.parser = httptools.HttpRequestParser(http)  # the old one waits for this body
            http.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._switch(self)

    async def next(self, silent_s: float) -> Bite | None:
        """The next bytes, None after the last; they last until the next call but one.

        Raises:
            TimeoutError: the client has sent nothing for so long.
            Gone: it hung up.
        """
        while len(self._lent) >= 2:
            self._free.append(self._lent.popleft())
        self._resume()
        while not self._ready:
            if self._lost or self._cycle.disconnected:
                raise Gone
            if self._left == 0:
                return None
            self._event.clear()
            try:
                async with asyncio.timeout_at(self._heard_s + silent_s):
                    await self._event.wait()
            except TimeoutError:
                if self._loop.time() < self._heard_s + silent_s:
                    continue
                if self._awaited == 1:
                    raise
                self._await(1)  # there may be some, if little: then it is there at once
                self._heard_s = self._loop.time() - silent_s + min(GLANCE_S, silent_s)
        bite, buffer = self._ready.popleft()
        if buffer is not None:
            self._lent.append(buffer)
        return bite

    def end(self) -> None:
        """Gives the connection back, at once or when what is still to come was skipped."""
        if self._left and not self._lost:
            self._skips = True
            self._now, self._filled = self._now if self._now is not None else _buffer(), 0
            self._resume()
        else:
            self._keep()

    # ------------------------------------------------------------------- what the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._now is None:
            self._now = self._free.pop()
        return self._now[self._filled : self._filled + self._left].data

    def buffer_updated(self, nbytes: int) -> None:
        """So many came."""
        self._left -= nbytes
        self._await(min(max(2 * self._awaited, FAST), MOST_AWAITED) if nbytes >= FAST else 1)
        self._heard_s = self._loop.time()
        if self._skips:
            if self._left == 0:
                self._give_back()
                self._keep()
            return
        assert self._now is not None
        self._filled += nbytes
        if self._filled == BITE or self._left == 0:
            self._ready.append((self._now[: self._filled], self._now))
            self._now, self._filled = None, 0
            if self._left == 0:
                self._give_back()
            elif not self._free:
                self._http.flow.pause_reading()
            self._event.set()

    def eof_received(self) -> None:
        """The client sends no more."""
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._lost = True
        self._event.set()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        """An answer waits."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """And goes on."""
        self._http.resume_writing()

    def _resume(self) -> None:
        if self._left and not self._lost and (self._skips or self._now is not None or self._free):
            if self._http.flow.read_paused:
                self._heard_s = self._loop.time()  # it was not the client who was silent
            self._http.flow.resume_reading()

    def _await(self, size_bytes: int) -> None:
        """The loop is woken by so many bytes (`SO_RCVLOWAT`), or as many as are to come."""
        size_bytes = max(min(size_bytes, self._left), 1)
        if size_bytes == self._awaited or self._plain is None or self._transport.is_closing():
            return
        self._awaited = size_bytes
        if not self._roomy:
            self._roomy = True
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ROOM)
        self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)

    def _give_back(self) -> None:
        self._cycle.more_body = False
        self._cycle.message_event.set()
        self._switch(self._http)

    def _switch(self, protocol: asyncio.BaseProtocol) -> None:
        self._http.flow.pause_reading()
        self._transport.set_protocol(protocol)
        self._http.flow.resume_reading()

    def _keep(self) -> None:
        _kept.extend(self._free)
        _kept.extend(self._lent)
        self._free, self._lent = [], deque()


def _buffer() -> Bite:
    try:
        return _kept.pop()
    except IndexError:
        return np.frombuffer(aligned_buffer(BITE), dtype=np.uint8)
