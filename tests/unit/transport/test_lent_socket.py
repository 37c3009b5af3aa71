"""Files that the system sends as answers: the exact bytes, or a broken answer, and nothing else."""

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pww.errors import PayloadError
from pww.transport.file_part import FilePart
from pww.transport.lent_socket import LentSocket, send_file
from pww.transport.raw_body import Gone, protocol_of
from pww.transport.serve import AsgiServer

DATA = np.random.default_rng(0).bytes(24 << 20)
"""More than the buffers on the way hold."""


class App:
    """Answers with the file, from the byte that the path says; the rest of it goes by ASGI."""

    def __init__(self, file: Path) -> None:
        self.file, self.disk = file, ThreadPoolExecutor(2)
        self.silent_s, self.told = 60.0, list[object]()
        self.over = threading.Event()
        self.next = b""  # comes while the answer's head goes out
        self.task: asyncio.Task[None] | None = None
        self.scope: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.task, self.scope = asyncio.current_task(), scope
        fd = os.open(self.file, os.O_RDONLY)
        start = int(scope["path"][1:])
        size = str(len(DATA) - start).encode()
        head = {"type": "http.response.start", "status": 200}
        try:
            await send({**head, "headers": [(b"content-length", size)]})
            if self.next:
                scope["extensions"]["pww.raw_body"].transport = Slow(scope, self.next)
                self.next = b""
            part = FilePart(fd, start, len(DATA))
            sent = await send_file(scope, part, self.disk, silent_s=self.silent_s)
            self.told.append(sent)
            await send({"type": "http.response.body", "body": DATA[start + sent :]})
        except (Gone, OSError, PayloadError, asyncio.CancelledError) as fault:
            http = protocol_of(scope)
            self.told += [type(fault), http is not None and http.cycle.disconnected]
        finally:
            os.close(fd)
            self.over.set()


class Slow:
    """A transport that still has an answer's head when the next request's head comes."""

    def __init__(self, scope: Any, head: bytes) -> None:
        self.http, self.head = protocol_of(scope), head
        assert self.http is not None
        self.real = self.http.transport

    def get_write_buffer_size(self) -> int:
        if not self.head:
            return self.real.get_write_buffer_size()
        head, self.head = self.head, b""
        assert self.http is not None
        self.http.data_received(head)
        return len(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[App, int]]:
    (tmp_path / "file").write_bytes(DATA)
    app = App(tmp_path / "file")
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
    server.start(app, name="files")
    yield app, server.port
    server.stop()
    app.disk.shutdown()


@pytest.fixture
def link(served: tuple[App, int]) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served[1]), timeout=60) as sock:
        yield sock


def ask(link: socket.socket, *starts: int) -> None:
    link.sendall(b"".join(map(request, starts)))


def request(start: int) -> bytes:
    return b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % start


def answer(link: socket.socket, start: int) -> bytes:
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        more = link.recv(1)
        assert more, "the connection is over"
        got += more
    body = bytearray()
    while len(body) < len(DATA) - start:
        more = link.recv(len(DATA) - start - len(body))
        if not more:
            break
        body += more
    return bytes(body)


def told(app: App, count: int) -> list[object]:
    """What the app says of so many answers; a client may have the last one before it is said."""
    end = time.monotonic() + 60
    while len(app.told) < count and time.monotonic() < end:
        time.sleep(0.01)
    return app.told


def test_all_of_it_goes_past_the_process(served: tuple[App, int], link: socket.socket) -> None:
    starts = [0, 5, len(DATA) - 1, len(DATA), 4097]
    for start in starts:
        ask(link, start)
        assert answer(link, start) == DATA[start:]
    assert told(served[0], len(starts)) == [len(DATA) - start for start in starts]


def test_the_next_request_comes_before_the_answer_is_over(
    served: tuple[App, int], link: socket.socket
) -> None:
    """What was sent counts for the answer that it belongs to."""
    ask(link, 0)
    assert link.recv(1, socket.MSG_PEEK)
    ask(link, 7, 9)
    assert [answer(link, start) == DATA[start:] for start in (0, 7, 9)] == [True] * 3


def test_the_next_request_comes_before_the_answer_is_begun(
    served: tuple[App, int], link: socket.socket
) -> None:
    app, _ = served
    app.next = request(7)
    ask(link, 5)
    assert [answer(link, start) == DATA[start:] for start in (5, 7)] == [True] * 2
    assert told(app, 2) == [len(DATA) - 5, len(DATA) - 7]


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EIO])
@pytest.mark.parametrize("broken", [True, False])
def test_a_fault_of_the_socket_is_none_of_the_disk(
    served: tuple[App, int], monkeypatch: pytest.MonkeyPatch, number: int, broken: bool
) -> None:
    """One number may be of either: a far disk's too."""

    def fails(sock: int, *_: Any) -> int:
        if broken:
            with socket.socket(fileno=os.dup(sock)) as ends:
                ends.shutdown(socket.SHUT_RDWR)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sendfile", fails)
    with socket.create_connection(("127.0.0.1", served[1]), timeout=60) as link:
        ask(link, 0)
        assert served[0].over.wait(60)
    fault = type(OSError(number, ""))
    assert served[0].told == ([Gone, True] if broken else [fault, False])


@pytest.mark.parametrize("how", ["cancel", "abort"])
def test_who_is_hung_up_on_is_sent_no_more(
    served: tuple[App, int], link: socket.socket, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    app, _ = served
    begun, go, calls, real = threading.Event(), threading.Event(), [], os.sendfile

    def once(*words: Any) -> int:
        calls.append(words)
        begun.set()
        assert go.wait(60)
        return real(*words)

    monkeypatch.setattr(os, "sendfile", once)
    ask(link, 0)
    assert begun.wait(60)
    hang_up(app.scope, app.task, how)
    go.set()
    assert app.over.wait(60)
    assert (len(calls), app.told[0]) == (1, asyncio.CancelledError if how == "cancel" else Gone)


def hang_up(scope: Any, task: Any, how: str) -> None:
    """As a server that ends; when this returns, whoever serves the request could know."""
    http = protocol_of(scope)
    assert http is not None

    async def end() -> None:
        if how == "cancel":
            task.cancel()
            await asyncio.sleep(0)  # for it to be woken
        else:
            http.transport.abort()
            while not http.cycle.disconnected:
                await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(end(), http.loop).result(60)


def test_what_the_system_cannot_send_goes_by_asgi(
    served: tuple[App, int], link: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.sendfile, []

    def sometimes(*words: Any) -> int:
        calls.append(words)
        if len(calls) in (1, 3):
            raise OSError(errno.EINVAL, "not with this file")
        return real(*words)

    monkeypatch.setattr(os, "sendfile", sometimes)
    for start in (0, 1):
        ask(link, start)
        assert answer(link, start) == DATA[start:]
    none, some = served[0].told
    assert none == 0
    assert isinstance(some, int)
    assert 0 < some < len(DATA) - 1


def test_a_client_that_hangs_up_and_one_that_takes_nothing(served: tuple[App, int]) -> None:
    app, port = served
    for silent_s, told in ((60.0, [Gone, True]), (0.3, [TimeoutError, False])):
        app.silent_s = silent_s
        app.told.clear()
        app.over.clear()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
            ask(link, 0)
            assert link.recv(1)
            if told[0] is Gone:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, *[0] * 7]))
                link.close()
            assert app.over.wait(60)
        assert app.told == told


def test_a_file_that_becomes_shorter_breaks_the_answer(
    served: tuple[App, int], link: socket.socket
) -> None:
    app, _ = served
    ask(link, 0)
    assert link.recv(1, socket.MSG_PEEK)
    os.truncate(app.file, 4096)
    assert len(answer(link, 0)) < len(DATA)
    assert app.told == [PayloadError, False]


def test_a_connection_that_the_work_itself_lost_is_not_the_peers(served: tuple[App, int]) -> None:
    def work() -> None:
        raise ConnectionResetError("by a far disk")

    async def run() -> None:
        with socket.create_connection(("127.0.0.1", served[1])) as sock, ThreadPoolExecutor(1) as d:
            http: Any = Http(asyncio.get_running_loop(), sock)
            lent = LentSocket(http, http)
            with pytest.raises(ConnectionResetError, match="by a far disk"):
                await lent.run(d, work)
            lent.close()

    asyncio.run(run())


def test_who_is_cancelled_waits_for_the_thread(served: tuple[App, int]) -> None:
    """It uses descriptors that are closed, and may be another file's, right afterwards."""
    begun, go, done = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        assert go.wait(60)
        done.append(True)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", served[1])) as sock, ThreadPoolExecutor(1) as d:
            http: Any = Http(loop, sock)
            lent = LentSocket(http, http)
            task = loop.create_task(lent.run(d, work))
            await loop.run_in_executor(None, begun.wait)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.05)
            assert not task.done()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert done
            lent.close()

    asyncio.run(run())


class Http:
    """As much of a protocol as a socket is lent by."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self.loop, self.transport, self.cycle = loop, self, self
        self.disconnected, self._extra = False, {"socket": sock}

    def get_extra_info(self, name: str) -> socket.socket:
        return self._extra[name]
