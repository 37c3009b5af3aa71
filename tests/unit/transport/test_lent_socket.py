"""Files that the system sends as answers: the exact bytes, or a broken answer, and nothing else."""

import asyncio
import errno
import os
import socket
import threading
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

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fd = os.open(self.file, os.O_RDONLY)
        start = int(scope["path"][1:])
        size = str(len(DATA) - start).encode()
        head = {"type": "http.response.start", "status": 200}
        try:
            await send({**head, "headers": [(b"content-length", size)]})
            part = FilePart(fd, start, len(DATA))
            sent = await send_file(scope, part, self.disk, silent_s=self.silent_s)
            self.told.append(sent)
            await send({"type": "http.response.body", "body": DATA[start + sent :]})
        except (Gone, TimeoutError, PayloadError) as fault:
            http = protocol_of(scope)
            self.told += [type(fault), http is not None and http.cycle.disconnected]
        finally:
            os.close(fd)
            self.over.set()


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
    link.sendall(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % start for start in starts))


def answer(link: socket.socket, start: int) -> bytes:
    got = b""
    while not got.endswith(b"\r\n\r\n"):
        got += link.recv(1)
    body = bytearray()
    while len(body) < len(DATA) - start:
        more = link.recv(len(DATA) - start - len(body))
        if not more:
            break
        body += more
    return bytes(body)


def test_all_of_it_goes_past_the_process(served: tuple[App, int], link: socket.socket) -> None:
    starts = [0, 5, len(DATA) - 1, len(DATA), 4097]
    for start in starts:
        ask(link, start)
        assert answer(link, start) == DATA[start:]
    assert served[0].told == [len(DATA) - start for start in starts]


def test_the_next_request_comes_before_the_answer_is_over(
    served: tuple[App, int], link: socket.socket
) -> None:
    """What was sent counts for the answer that it belongs to."""
    ask(link, 0)
    assert link.recv(1, socket.MSG_PEEK)
    ask(link, 7, 9)
    assert [answer(link, start) == DATA[start:] for start in (0, 7, 9)] == [True] * 3


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
            lent = LentSocket(Http(loop, sock))  # type: ignore[arg-type]
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
