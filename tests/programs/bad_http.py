"""Stands between a client and a server on loopback, and spoils what passes: for tests.

`BadHttp` reads whole requests and answers and hands each to a fault; it is also a forward proxy
(absolute targets and CONNECT), for any host name. `BadPipe` passes bytes, of TLS too, and resets a
connection or lets it rest after so many. Threads end when the sockets are closed.
"""

import dataclasses
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


@dataclasses.dataclass
class Request:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclasses.dataclass
class Reply:
    """An answer as it will be sent; a header may be removed or changed."""

    status: int
    headers: dict[str, str]
    body: bytes

    def sent(self) -> bytes:
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return f"HTTP/1.1 {self.status} X\r\n{head}\r\n".encode() + self.body


class HangUp(Exception):
    """A fault raises it to end the connection; `last` is sent before."""

    def __init__(self, last: bytes = b"") -> None:
        self.last = last
        super().__init__()


Forward = Callable[[Request], Reply]
Fault = Callable[[Request, Forward], Reply]


def honest(request: Request, forward: Forward) -> Reply:
    """No fault."""
    return forward(request)


class _Server:
    """Accepts connections on loopback until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._sockets: list[socket.socket] = []
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(client)
            threading.Thread(target=self._guarded, args=(client,), daemon=True).start()

    def _guarded(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError, ValueError, IndexError):
            self._serve(client)
        client.close()

    def _serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def _to(self, port: int) -> socket.socket:
        server = socket.create_connection(("127.0.0.1", port))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(server)
        return server

    def close(self) -> None:
        self._closed.set()
        for sock in [self._listener, *self._sockets]:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BadHttp(_Server):
    """In front of the server at `target`; `fault` sees each request and answers it."""

    def __init__(self, target: int, fault: Fault = honest, *, password: str = "") -> None:
        """With `password` (base64 of NAME:WORD) it is a proxy that wants to be told it."""
        self._target, self.fault, self._password = target, fault, password
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.connects: list[str] = []
        super().__init__()

    def _serve(self, client: socket.socket) -> None:
        stream = client.makefile("rb")
        with stream:
            while True:
                request = _read_request(stream, client)
                told = request.headers.pop("proxy-authorization", "")
                if self._password and told != f"Basic {self._password}":
                    client.sendall(b"HTTP/1.1 407 Who\r\ncontent-length: 0\r\n\r\n")
                    return
                if request.method == "CONNECT":
                    self.connects.append(request.target)
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    self._tunnel(client)
                    return
                with self._lock:
                    self.requests.append(request)
                try:
                    reply = self.fault(request, self.forward)
                except HangUp as last:
                    client.sendall(last.last)
                    return
                client.sendall(reply.sent())

    def forward(self, request: Request) -> Reply:
        """What the server answers."""
        with self._to(self._target) as server:
            url = urlsplit(request.target)
            head = {**request.headers, "content-length": str(len(request.body)),
                    "connection": "close"}  # fmt: skip
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            target = url._replace(scheme="", netloc="").geturl()
            server.sendall(f"{request.method} {target} HTTP/1.1\r\n{lines}\r\n".encode())
            server.sendall(request.body)
            with server.makefile("rb") as stream:
                status = int(stream.readline().split()[1])
                headers = _read_headers(stream)
                headers.pop("connection", None)
                bodiless = status == 204 or request.method == "HEAD"
                length = 0 if bodiless else int(headers["content-length"])
                return Reply(status, headers, _exactly(stream, length))

    def _tunnel(self, client: socket.socket) -> None:
        with self._to(self._target) as server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


class BadPipe(_Server):
    """Spoils one connection, after so many bytes in one direction; all others pass.

    It is reset, or it `stalls`: stays open, and nothing that either side sends on it arrives.
    """

    def __init__(self, target: int, *, up: bool, after_bytes: int, stalls: bool = False) -> None:
        self._target, self._up, self._left, self._stalls = target, up, after_bytes, stalls
        self._lock = threading.Lock()
        self.reset = self.stalled = False
        super().__init__()

    def _serve(self, client: socket.socket) -> None:
        with self._to(self._target) as server:
            other = {client: server, server: client}
            while True:  # one thread: a socket that another one waits for would not be reset
                for source in select.select(list(other), [], [])[0]:
                    data = source.recv(16384)
                    if not data:
                        return
                    passing, over = self._passing(data, up=source is client)
                    other[source].sendall(passing)
                    if over and self._stalls:
                        _swallow(other)
                        return
                    if over:
                        for sock in other:  # a close that sends RST
                            linger = struct.pack("ii", 1, 0)
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        return

    def _passing(self, data: bytes, *, up: bool) -> tuple[bytes, bool]:
        """What of it goes on, and whether that was the last of its connection."""
        with self._lock:
            if up != self._up or self.reset or self.stalled:
                return data, False
            passing, self._left = data[: self._left], self._left - len(data)
            over = self._left <= 0
            self.stalled, self.reset = over and self._stalls, over and not self._stalls
            return passing, over


def _swallow(sockets: Iterable[socket.socket]) -> None:
    """Reads what comes until one side ends."""
    while all(sock.recv(65536) for sock in select.select(list(sockets), [], [])[0]):
        pass


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _read_request(stream, client: socket.socket) -> Request:  # type: ignore[no-untyped-def]
    line = stream.readline()
    if not line:
        raise EOFError
    method, target, _ = line.decode().split()
    headers = _read_headers(stream)
    if headers.pop("expect", ""):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = _exactly(stream, int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


def _read_headers(stream) -> dict[str, str]:  # type: ignore[no-untyped-def]
    headers = {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _exactly(stream, size: int) -> bytes:  # type: ignore[no-untyped-def]
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data
