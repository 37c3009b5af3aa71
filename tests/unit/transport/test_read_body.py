"""Bodies of requests for threads: the exact bytes, whoever sends them and however it ends."""

import asyncio
import errno
import gc
import hashlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from gatehouse import Gatehouse

from pww.central import credentials
from pww.clock import SystemClock
from pww.transport import read_body as module
from pww.transport.raw_body import BITE, HEAD, Gone, RawBody, protocol_of
from pww.transport.read_body import Data, read_body
from pww.transport.serve import AsgiServer
from pww.transport.tls import client_context

BODY = np.random.default_rng(0).bytes(4 * BITE + 17)


class Enough(Exception):
    """The app wants no more of a body."""


class App:
    """Answers with a body's digest; a path says what else to do."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.event = threading.Event()
        self.disk = ThreadPoolExecutor(2)
        self.begun, self.go = threading.Event(), threading.Event()
        self.calls, self.task = 0, list[asyncio.Task[Any] | None]()
        self.taken = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size, path = int(dict(scope["headers"]).get(b"content-length", b"0")), scope["path"]
        if path == "/late":
            await asyncio.sleep(0.2)
            http = protocol_of(scope)
            self.told.append(0 if http is None else len(http.cycle.body))
        if path == "/lazy":
            answer = await self._lazy(scope, size)
        else:
            answer = await self._read(path, scope, receive, size)
        headers = [(b"content-length", b"%d" % len(answer))]
        with suppress(OSError):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})

    async def _read(self, path: str, scope: Any, receive: Any, size: int) -> bytes:
        digest, self.task = hashlib.sha256(), [asyncio.current_task()]

        def take(bites: Sequence[Data]) -> None:
            self.taken += 1
            for bite in bites:
                digest.update(bite.tobytes() if isinstance(bite, np.ndarray) else bite)
            if path == "/enough":
                raise Enough
            if path == "/held":
                self.calls += 1
                self.begun.set()
                assert self.go.wait(60)

        silent_s = {"/silent": 2.0, "/brief": module.GLANCE_S}.get(path, 60.0)
        try:
            await read_body(scope, receive, size, take, self.disk, silent_s=silent_s)
        except (Enough, Gone, TimeoutError, asyncio.CancelledError) as fault:
            self.told.append(type(fault))
            self.event.set()
            return type(fault).__name__.encode()
        return digest.hexdigest().encode()

    async def _lazy(self, scope: Any, size: int) -> bytes:
        """Looks late at what came, and then at two bites at a time."""
        http = protocol_of(scope)
        assert http is not None
        body, digest = RawBody(http, size), hashlib.sha256()
        await asyncio.sleep(0.5)
        self.told.append(sum(len(bite) for bite, _ in body._ready) + body._filled)
        held: Any = b""
        while (bite := await body.next(60.0)) is not None:
            digest.update(held)  # what came before is still what it was
            held = bite
        digest.update(held)
        body.end()
        return digest.hexdigest().encode()


@pytest.fixture(scope="module", params=["plain", "tls"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[App, AsgiServer, Any]]:
    app, tls, context = App(), None, None
    if request.param == "tls":
        folder = tmp_path_factory.mktemp("house")
        house = Gatehouse.build(folder, SystemClock())
        tls = credentials.server_tls(house.folder)
        context = client_context((house.folder / "bundles/lumi/ca.pem").read_text())
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port", tls=tls)
    server.start(app, name="bodies")
    yield app, server, context
    server.stop()
    app.disk.shutdown()


@pytest.fixture
def app(served: tuple[App, AsgiServer, Any]) -> App:
    served[0].told.clear()
    served[0].event.clear()
    return served[0]


@pytest.fixture
def link(served: tuple[App, AsgiServer, Any]) -> Iterator[socket.socket]:
    _, server, context = served
    with ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
        if context is None:
            yield plain
        else:
            yield stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))


def head(path: str, size: int, extra: str = "") -> bytes:
    return f"PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n{extra}\r\n".encode()


def answer(link: socket.socket) -> str:
    got = b""
    while b"\r\n\r\n" not in got:
        got += link.recv(1)
    size = int(got.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = b""
    while len(body) < size:
        body += link.recv(size - len(body))
    return body.decode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("path", ["/", "/late"])
def test_bodies_of_all_sizes_on_one_connection(link: socket.socket, app: App, path: str) -> None:
    """Of a body that the app asks for late, little comes through the parser meanwhile."""
    for size in (0, 1, 1000, BITE - 1, BITE, BITE + 1, 2 * BITE, 2 * BITE + 1, len(BODY)):
        link.sendall(head(path, size) + BODY[:size])
        assert answer(link) == digest(BODY[:size]), size
    assert all(isinstance(early, int) and early <= HEAD for early in app.told)
    assert len(app.told) == (9 if path == "/late" else 0)


def test_a_body_in_small_sends_and_requests_without_a_pause(link: socket.socket, app: App) -> None:
    """What comes after a body is the next request's, where they arrive together."""
    sizes = (3, 0, BITE + 5, 70_000, 1)
    whole = b"".join(head("/", size) + BODY[:size] for size in sizes)
    for at in range(0, len(whole), 9973):  # here: TLS is no matter for two threads at once
        link.sendall(whole[at : at + 9973])
    assert [answer(link) for _ in sizes] == [digest(BODY[:size]) for size in sizes]


def test_what_is_not_wanted_is_skipped(link: socket.socket, app: App) -> None:
    for _ in range(3):
        link.sendall(head("/enough", len(BODY)) + BODY)
        assert answer(link) == "Enough"
        link.sendall(head("/", 10) + BODY[:10])
        assert answer(link) == digest(BODY[:10])


def test_a_client_that_is_silent_and_one_that_hangs_up(link: socket.socket, app: App) -> None:
    link.sendall(head("/silent", len(BODY)) + BODY[: BITE + 1])
    assert answer(link) == "TimeoutError"
    link.sendall(BODY[BITE + 1 :] + head("/", 10) + BODY[:10])
    assert answer(link) == digest(BODY[:10]), "the late rest is skipped"
    app.told.clear()
    app.event.clear()
    link.sendall(head("/", len(BODY)) + BODY[: BITE + 1])
    socket.socket.shutdown(link, socket.SHUT_RDWR)
    assert app.event.wait(60)
    assert app.told == [Gone]


def test_nothing_is_taken_for_a_request_that_was_cancelled(link: socket.socket, app: App) -> None:
    link.sendall(head("/held", 2000) + BODY[:1000])
    assert app.begun.wait(60)
    link.sendall(BODY[1000:1500])
    (task,) = app.task
    assert task is not None

    async def cancel() -> None:
        task.cancel()
        await asyncio.sleep(0)  # for it to be woken

    asyncio.run_coroutine_threadsafe(cancel(), task.get_loop()).result(60)
    app.go.set()
    assert (answer(link), app.calls) == ("CancelledError", 1)
    link.sendall(BODY[1500:2000] + head("/", 10) + BODY[:10])
    assert answer(link) == digest(BODY[:10]), "the rest is skipped"


@pytest.mark.parametrize("served", ["plain"], indirect=True)  # TLS reads in the loop
@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET])
def test_a_fault_of_the_socket_is_a_client_who_is_gone(
    link: socket.socket, app: App, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "readv", fails)
    link.sendall(head("/", 10))
    assert app.event.wait(60)
    assert app.told == [Gone]


def test_a_slow_client_is_not_a_silent_one(link: socket.socket, app: App) -> None:
    """A few bytes at a time, each sooner than the limit, all of them later."""
    link.sendall(head("/silent", 12))
    for at in range(12):
        threading.Event().wait(0.25)
        link.sendall(BODY[at : at + 1])
    assert answer(link) == digest(BODY[:12])


@pytest.mark.parametrize("path", ["/silent", "/brief"])
def test_a_client_that_becomes_slow_is_heard(link: socket.socket, app: App, path: str) -> None:
    """A fast body wakes the loop seldom; the few bytes that come in the end are no silence."""
    data = BODY[: 2 * BITE + 12]
    link.sendall(head(path, len(data)) + data[:-12])
    for at in range(len(data) - 12, len(data)):
        threading.Event().wait(0.25)
        link.sendall(data[at : at + 1])
    assert answer(link) == digest(data)


def test_a_fast_body_wakes_nobody_for_little_and_the_next_request_does(
    link: socket.socket, app: App
) -> None:
    """How much the socket waits for is set back, or a short request would wait for ever."""
    for _ in range(2):
        link.sendall(head("/", len(BODY)) + BODY[:BITE])
        threading.Event().wait(0.2)  # somebody waits for the rest
        link.sendall(BODY[BITE:])
        assert answer(link) == digest(BODY)
        link.sendall(head("/", 1) + BODY[:1])
        assert answer(link) == digest(BODY[:1])


def test_a_steady_body_of_small_packets_wakes_nobody_for_each(
    link: socket.socket, app: App
) -> None:
    """As over a long way, shared by many connections."""
    app.taken = 0
    packets = [BODY[at : at + 4000] for at in range(0, 4000 * 200, 4000)]
    link.sendall(head("/", 4000 * 200))
    for packet in packets:
        link.sendall(packet)
        threading.Event().wait(0.002)
    assert answer(link) == digest(b"".join(packets))
    assert app.taken <= 60


def test_nobody_is_read_faster_than_he_is_listened_to(link: socket.socket, app: App) -> None:
    data = BODY * 16
    sender = threading.Thread(target=link.sendall, args=(head("/lazy", len(data)) + data,))
    sender.start()
    assert answer(link) == digest(data)
    sender.join()
    assert app.told[0] <= 2 * BITE + HEAD  # type: ignore[operator]


def test_what_cannot_be_lent_comes_by_asgi(link: socket.socket, app: App) -> None:
    for extra in ("", "expect: 100-continue\r\n"):
        link.sendall(head("/", 3, extra) + b"abc")
        if extra:
            assert link.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert answer(link) == digest(b"abc")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(BODY[:size]), BODY[:size]) for size in (9, 70_000))
    link.sendall(b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    link.sendall(chunks + b"0\r\n\r\n")
    assert answer(link) == digest(BODY[:9] + BODY[:70_000])


def test_other_servers_lend_nothing() -> None:
    assert protocol_of({"type": "http"}) is None
    assert protocol_of({"type": "http", "extensions": {"pww.raw_body": object()}}) is None


def test_who_leaves_while_his_bytes_are_refused_leaves_no_trace() -> None:
    """Whoever takes them refuses, and nobody is there to be told."""
    bites = [np.zeros(8, np.uint8)]

    class Body:
        async def next(self, silent_s: float) -> Any:
            if bites:
                return bites.pop()
            raise TimeoutError

        def end(self) -> None:
            pass

    def refuse(bites: Sequence[Data]) -> None:
        raise Enough

    unheard: list[Any] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
        with ThreadPoolExecutor(1) as disk, pytest.raises(TimeoutError):
            await module._by_loop(Body(), refuse, disk, 1.0)  # type: ignore[arg-type]
        gc.collect()

    asyncio.run(leave())
    assert not unheard
