"""Connections that a server lends: uvicorn's protocol with an extension, and bodies through it.

Through ASGI every byte of a body is copied four times by the one thread that serves everybody.
`HttpProtocol` lends the connection for as long as a body lasts: its socket to threads
(`lent_socket`) or, where TLS has to see the bytes first, its transport to a `RawBody`, which the
loop decrypts into. Where a server does not offer it, an app has ASGI's way (`read_body`).
"""

import asyncio
import threading
from collections import deque
from typing import Any

import httptools
import numpy as np
from numpy.typing import NDArray
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pww.transport.memory import aligned_buffer

RAW_BODY = "pww.raw_body"
HEAD, READ = 8 << 10, 256 << 10
"""Read at once of a connection that is not lent: at the head of a request, and in its body."""
BITE = 1 << 20
"""Handed over together."""
MAX_KEPT = 32
Bite = NDArray[np.uint8]
_kept: deque[Bite] = deque(maxlen=MAX_KEPT)  # fresh pages cost as much as a copy


class Gone(Exception):
    """The client hung up in the middle."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, with the extension."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to read, in its own way."""
        super().connection_made(transport)
        self.heads = _Heads(self)
        transport.set_protocol(self.heads)

    def on_message_begin(self) -> None:
        """Offers the extension to the app."""
        super().on_message_begin()
        self.scope["extensions"] = {RAW_BODY: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        """Leaves a body in the socket until the app asks for it, one way or the other."""
        super().on_headers_complete()
        if any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            self.flow.pause_reading()

    @property
    def secure(self) -> bool:
        """Whether TLS is between the socket and what is said."""
        return self.transport.get_extra_info("ssl_object") is not None

    def lends(self) -> bool:
        """Whether the body of the last request may be taken past the parser."""
        odd = any(name in (b"transfer-encoding", b"expect") for name, _ in self.headers)
        return not odd and not self.transport.is_closing()

    def take_over(self, size_bytes: int) -> tuple[bytes, int]:
        """What came already of a body of so many bytes, and how many are to come, past the parser.

        Reading rests, and what comes after the body is for a new parser.
        """
        self.flow.pause_reading()
        early, self.cycle.body = bytes(self.cycle.body), bytearray()
        left = size_bytes - len(early) if self.cycle.more_body else 0
        if left:
            self.parser = httptools.HttpRequestParser(self)  # the old one waits for this body
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return early, left


def protocol_of(scope: Any) -> HttpProtocol | None:
    """The connection of the request `scope`, if the server lends it.

    The request has to be the last that came: what follows it in the socket is not for its app.
    """
    http = (scope.get("extensions") or {}).get(RAW_BODY)
    return http if isinstance(http, HttpProtocol) and http.headers is scope["headers"] else None


class _Reader(asyncio.BufferedProtocol):
    """Reads for an `HttpProtocol`, and leaves it what is not for reading."""

    def __init__(self, http: HttpProtocol) -> None:
        self._http = http

    def eof_received(self) -> None:
        """The client sends no more."""
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        """An answer waits."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """And goes on."""
        self._http.resume_writing()


class _Room(threading.local):
    """Memory for what a thread's loop reads: all of it is parsed before more is read."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(READ))


_room = _Room()


class _Heads(_Reader):
    """Reads what is no lent body: heads of requests, and bodies for ASGI."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Room for a head, since what comes of a body with it is copied twice more; or a body."""
        cycle = self._http.cycle
        inside = cycle is not None and cycle.more_body and not cycle.response_complete
        return _room.view[: READ if inside else HEAD]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._http.data_received(bytes(_room.view[:nbytes]))


class RawBody(_Reader):
    """One body on its way in. Everything happens in the event loop's thread."""

    def __init__(self, http: HttpProtocol, size_bytes: int) -> None:
        """The body of the last request, which `http` lends; `end` it in any case."""
        super().__init__(http)
        self._cycle, self._loop = http.cycle, http.loop
        self._transport: Any = http.transport
        early, self._left = http.take_over(size_bytes)
        self._ready: deque[tuple[Bite, Bite | None]] = deque()  # and the buffer they are in
        if early:
            self._ready.append((np.frombuffer(early, dtype=np.uint8), None))
        self._free: list[Bite] = []
        self._lent: deque[Bite] = deque()
        self._now: Bite | None = None
        self._filled = 0
        self._lost = self._skips = False
        self._event, self._heard_s = asyncio.Event(), self._loop.time()
        if self._left:
            self._free = [_buffer(), _buffer()]
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
                if self._loop.time() >= self._heard_s + silent_s:
                    raise
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

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._lost = True
        self._event.set()
        super().connection_lost(exc)

    def _resume(self) -> None:
        if self._left and not self._lost and (self._skips or self._now is not None or self._free):
            if self._http.flow.read_paused:
                self._heard_s = self._loop.time()  # it was not the client who was silent
            self._http.flow.resume_reading()

    def _give_back(self) -> None:
        self._cycle.more_body = False
        self._cycle.message_event.set()
        self._switch(self._http.heads)

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
