"""Bodies straight from the socket: the exact bytes, whoever sends them and however it ends."""

import asyncio
import hashlib
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from gatehouse import Gatehouse

from pww.central import credentials
from pww.clock import SystemClock
from pww.transport.raw_body import BITE, Gone, take_body
from pww.transport.serve import AsgiServer
from pww.transport.tls import client_context

BODY = np.random.default_rng(0).bytes(4 * BITE + 17)


class App:
    """Answers with a body's digest; a path says what else to do."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.event = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = int(dict(scope["headers"]).get(b"content-length", b"0"))
        if scope["path"] == "/late":  # the first bytes come through the parser
            await asyncio.sleep(0.2)
        body = take_body(scope, size)
        answer = b"no body to lend"
        if body is None and scope["path"] == "/":
            answer = await self._by_asgi(receive)
        elif body is not None:
            try:
                answer = await self._read(scope["path"], body)
            except (Gone, TimeoutError) as fault:
                self.told.append(type(fault))
                answer = type(fault).__name__.encode()
            finally:
                body.end()
                self.event.set()
        headers = [(b"content-length", b"%d" % len(answer))]
        with suppress(OSError):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answer})

    async def _by_asgi(self, receive: Any) -> bytes:
        digest, more = hashlib.sha256(), True
        while more:
            event = await receive()
            digest.update(event.get("body", b""))
            more = event.get("more_body", False)
        self.told.append("asgi")
        return digest.hexdigest().encode()

    async def _read(self, path: str, body: Any) -> bytes:
        if path == "/lazy":
            await asyncio.sleep(0.5)
            self.told.append(sum(len(bite) for bite, _ in body._ready) + body._filled)
        digest = hashlib.sha256()
        held = None
        while (bite := await body.next(2.0 if path == "/silent" else 60.0)) is not None:
            if held is not None:  # what came before is still what it was
                digest.update(held.tobytes())
            held = bite
            if path == "/enough":
                return b"enough"
        if held is not None:
            digest.update(held.tobytes())
        return digest.hexdigest().encode()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[App, int]]:
    app = App()
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
    server.start(app, name="raw")
    yield app, server.port
    server.stop()


@pytest.fixture
def app(served: tuple[App, int]) -> App:
    served[0].told.clear()
    served[0].event.clear()
    return served[0]


@pytest.fixture
def link(served: tuple[App, int]) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served[1]), timeout=60) as sock:
        yield sock


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
    for size in (0, 1, 1000, BITE - 1, BITE, BITE + 1, 2 * BITE, 2 * BITE + 1, len(BODY)):
        link.sendall(head(path, size) + BODY[:size])
        assert answer(link) == digest(BODY[:size]), size


def test_a_body_in_small_sends_and_requests_without_a_pause(link: socket.socket, app: App) -> None:
    """What comes after a body is the next request's, where they arrive together."""
    sizes = (3, 0, BITE + 5, 70_000, 1)
    whole = b"".join(head("/", size) + BODY[:size] for size in sizes)
    sender = threading.Thread(
        target=lambda: [link.sendall(whole[at : at + 9973]) for at in range(0, len(whole), 9973)]
    )
    sender.start()
    assert [answer(link) for _ in sizes] == [digest(BODY[:size]) for size in sizes]
    sender.join()


def test_what_is_not_wanted_is_skipped(link: socket.socket, app: App) -> None:
    for _ in range(3):
        link.sendall(head("/enough", len(BODY)) + BODY)
        assert answer(link) == "enough"
        link.sendall(head("/", 10) + BODY[:10])
        assert answer(link) == digest(BODY[:10])


def test_a_client_that_hangs_up_and_one_that_is_silent(link: socket.socket, app: App) -> None:
    link.sendall(head("/silent", len(BODY)) + BODY[: BITE + 1])
    assert answer(link) == "TimeoutError"
    link.sendall(BODY[BITE + 1 :] + head("/", 10) + BODY[:10])
    assert answer(link) == digest(BODY[:10]), "the late rest is skipped"
    app.told.clear()
    app.event.clear()
    link.sendall(head("/", len(BODY)) + BODY[: BITE + 1])
    link.shutdown(socket.SHUT_RDWR)
    assert app.event.wait(60)
    assert app.told == [Gone]


def test_a_slow_client_is_not_a_silent_one(link: socket.socket, app: App) -> None:
    """A few bytes at a time, each sooner than the limit, all of them later."""
    link.sendall(head("/silent", 12))
    for at in range(12):
        threading.Event().wait(0.25)
        link.sendall(BODY[at : at + 1])
    assert answer(link) == digest(BODY[:12])


def test_a_client_that_becomes_slow_is_heard(link: socket.socket, app: App) -> None:
    """A fast body wakes the loop seldom; the few bytes that come in the end are no silence."""
    data = BODY[: 2 * BITE + 12]
    link.sendall(head("/silent", len(data)) + data[:-12])
    for at in range(len(data) - 12, len(data)):
        threading.Event().wait(0.25)
        link.sendall(data[at : at + 1])
    assert answer(link) == digest(data)


def test_nobody_is_read_faster_than_he_is_listened_to(link: socket.socket, app: App) -> None:
    data = BODY * 16
    sender = threading.Thread(target=link.sendall, args=(head("/lazy", len(data)) + data,))
    sender.start()
    assert answer(link) == digest(data)
    sender.join()
    assert app.told[0] <= 2 * BITE + (256 << 10)  # type: ignore[operator]


@pytest.mark.parametrize("extra", ["expect: 100-continue\r\n"])
def test_what_cannot_be_lent_is_not(link: socket.socket, app: App, extra: str) -> None:
    link.sendall(head("/odd", 3, extra) + b"abc")
    assert answer(link) == "no body to lend"


def test_other_servers_lend_nothing() -> None:
    assert take_body({"type": "http"}, 3) is None
    assert take_body({"type": "http", "extensions": {"pww.raw_body": object()}}, 3) is None


def test_bodies_through_tls(tmp_path: Path) -> None:
    house, app = Gatehouse.build(tmp_path, SystemClock()), App()
    server = AsgiServer(
        host="127.0.0.1", port=0, key="central.port", tls=credentials.server_tls(house.folder)
    )
    server.start(app, name="raw")
    try:
        context = client_context((house.folder / "bundles/lumi/ca.pem").read_text())
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as link,
        ):
            for size in (1, BITE, 3 * BITE + 1, 0, len(BODY)):
                link.sendall(head("/", size) + BODY[:size])
                assert answer(link) == digest(BODY[:size])
            assert app.told == [], "and not through ASGI"
    finally:
        server.stop()
