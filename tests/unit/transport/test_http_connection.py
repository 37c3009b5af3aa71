"""One connection for big bodies: proxies from the environment, bad URLs, and faults as they are."""

import errno
import http.client
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from bad_http import BadHttp, Forward, HangUp, Reply, Request
from gatehouse import Gatehouse

from pww.central import credentials
from pww.clock import SystemClock
from pww.errors import CentralError, PayloadError
from pww.transport.blob_peer import BlobPeer, BlobSite
from pww.transport.file_part import FilePart
from pww.transport.http_connection import Faults, HttpConnection
from pww.transport.retry import TryAgain
from pww.transport.serve import AsgiServer
from pww.wire import Refusal

DATA = bytes(range(256)) * 4097


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def echo(request: Request, forward: Forward) -> Reply:
    return Reply(200, {"content-length": str(len(request.body))}, request.body)


@pytest.fixture
def server() -> Iterator[BadHttp]:
    with BadHttp(0, echo) as running:
        yield running


OPEN: list[HttpConnection | BlobPeer] = []


@pytest.fixture(autouse=True)
def dropped() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().drop()


def connection(url: str, *, timeout_s: float = 10.0) -> HttpConnection:
    OPEN.append(HttpConnection(url, tls=None, timeout_s=timeout_s))
    return OPEN[-1]  # type: ignore[return-value]


def peer(url: str, tls: ssl.SSLContext | None = None) -> BlobPeer:
    OPEN.append(BlobPeer(BlobSite(url, lambda refused: "", tls, 10.0)))
    return OPEN[-1]  # type: ignore[return-value]


def test_body_both_ways(server: BadHttp, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    http_ = connection(server.url + "/below/")
    with (tmp_path / "file").open("rb") as file:
        body = FilePart(file.fileno(), 5, len(DATA))
        for _ in range(2):
            reply = http_.request("PUT", "/x", {"a": "b"}, body)
            assert reply.read() == DATA[5:]
        (tmp_path / "file").write_bytes(b"short")
        with pytest.raises(PayloadError, match="became shorter while it was sent: write it again"):
            http_.request("PUT", "/x", {}, body)
    put = [(r.method, r.target, r.headers["a"]) for r in server.requests]
    assert put == [("PUT", "/below/x", "b")] * 2


def test_the_way_is_known_while_there_is_a_connection(server: BadHttp) -> None:
    http_ = connection(server.url)
    assert http_.round_trip_s() == 0.0
    http_.request("GET", "/x", {}).read()
    assert 0.0 < http_.round_trip_s() < 1.0
    http_.drop()
    assert http_.round_trip_s() == 0.0


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "central:29512", "http://x:port", "http://x:0", "http://[x"]
)
def test_no_url(url: str) -> None:
    with pytest.raises(CentralError, match="is no http or https URL: give one like https://"):
        connection(url)


@pytest.mark.parametrize(
    "proxy", ["socks5://name:secret@p:1", "https://name:secret@p:1", "http://"]
)
def test_no_proxy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(CentralError, match="is not an http:// proxy: set HTTP_PROXY") as caught:
        connection("http://central.invalid")
    assert "secret" not in str(caught.value)


def test_proxy_without_scheme_and_all_proxy(server: BadHttp, monkeypatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"127.0.0.1:{server.port}")
        reply = connection("http://central.invalid").request("GET", "/x", {})
        assert reply.status == 200
        monkeypatch.delenv(name)
    assert [r.target for r in server.requests] == ["http://central.invalid/x"] * 2


def test_connect_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS goes through the tunnel to the central itself: the proxy sees the host's name only."""
    house = Gatehouse.build(tmp_path, SystemClock())
    server = AsgiServer(
        host="127.0.0.1", port=0, key="central.port", tls=credentials.server_tls(house.folder)
    )

    async def app(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server.start(app, name="tls")
    tls = house.bundle("lumi/a").tls
    with BadHttp(server.port, password="bmFtZTp3b3Jk") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://name:word@127.0.0.1:{proxy.port}")
        assert peer("https://central.example", tls).ask("POST", "x") == b""
        assert proxy.connects == ["central.example:443"]
        with pytest.raises(CentralError, match="certificate is for another host"):
            peer("https://other.example", tls).ask("POST", "x")
        monkeypatch.setenv("HTTPS_PROXY", f"http://name:wrong@127.0.0.1:{proxy.port}")
        with pytest.raises(CentralError, match=r"does not let this machine through .*407"):
            peer("https://central.example", tls).ask("POST", "x")
    server.stop()


def test_abort_wakes_and_stays(server: BadHttp) -> None:
    """Whoever waits for an answer stops, and sends nothing more on this connection."""
    came, over = threading.Event(), threading.Event()

    def silent(request: Request, forward: Forward) -> Reply:
        came.set()
        over.wait(20.0)
        raise HangUp

    server.fault = silent
    http_ = connection(server.url, timeout_s=60.0)
    faults: list[BaseException] = []

    def ask() -> None:
        for _ in range(2):
            try:
                http_.request("GET", "/x", {})
            except Faults as fault:
                faults.append(fault)

    thread = threading.Thread(target=ask)
    thread.start()
    assert came.wait(10.0)
    http_.abort()
    thread.join(10.0)
    over.set()
    assert not thread.is_alive()
    assert str(faults[1]) == "closed by this side"


def test_what_arrived_over_a_connection_that_is_closed_meanwhile(
    server: BadHttp, tmp_path: Path
) -> None:
    """Another thread looks at a socket that its own thread has just let go of."""
    (tmp_path / "body").write_bytes(DATA)
    connection = HttpConnection(server.url, tls=None, timeout_s=5.0)
    OPEN.append(connection)
    with (tmp_path / "body").open("rb") as file:
        body = FilePart(file.fileno(), 0, len(DATA))
        connection.request("PUT", "/x", {}, body).read()
    assert connection._http is not None
    assert connection._http.sock is not None
    connection._http.sock.close()
    assert connection.arrived() == len(DATA)
    connection.drop()
    assert connection.arrived() == 0


def test_timeout_is_for_silence(server: BadHttp) -> None:
    """A body that takes longer than the timeout in all is fine; silence is not."""
    listener = socket.create_server(("127.0.0.1", 0))
    http_ = connection(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.1)
    with pytest.raises(TimeoutError):
        http_.request("GET", "/x", {})
    listener.close()


def answer(server: BadHttp, status: int, body: bytes, **headers: str) -> None:
    told = {
        "content-length": str(len(body)),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    server.fault = lambda request, forward: Reply(status, told, body)


def refusal(**more: object) -> bytes:
    return (
        Refusal.model_validate({"code": "bad_request", "message": "no", **more})
        .model_dump_json()
        .encode()
    )


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
def test_what_may_pass(server: BadHttp, status: int) -> None:
    answer(server, status, b"<html>", retry_after="3")
    with pytest.raises(TryAgain, match=f"HTTP {status}") as caught:
        peer(server.url).ask("POST", "x")
    assert caught.value.after_s == 3.0
    answer(server, status, refusal(retry_after_s=9.0), retry_after="Wed, 21 Oct 2015 07:28:00 GMT")
    with pytest.raises(TryAgain, match="no") as caught:
        peer(server.url).ask("POST", "x")
    assert caught.value.after_s == 9.0
    answer(server, status, b"", retry_after="99999")
    with pytest.raises(TryAgain) as caught:
        peer(server.url).ask("POST", "x")
    assert caught.value.after_s == 60.0, "nobody makes a site wait for a day"


def test_what_is_no_answer(server: BadHttp) -> None:
    answer(server, 200, b"x" * (5 << 20))
    with pytest.raises(CentralError, match="answered with more than 4194304 bytes, which is no"):
        peer(server.url).ask("POST", "x")
    answer(server, 404, b"<html>not found", content_type="text/html")
    with pytest.raises(CentralError, match=r"HTTP 404 \(text/html\) '<html>not found'"):
        peer(server.url).ask("POST", "x")
    answer(server, 200, b"{}", content_length="9")

    def short(request: Request, forward: Forward) -> Reply:
        raise HangUp(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}")

    server.fault = short
    with pytest.raises(TryAgain, match="an answer that ended 7 bytes early"):
        peer(server.url).ask("POST", "x")

    def endless(request: Request, forward: Forward) -> Reply:
        raise HangUp(b"HTTP/1.1 200 OK\r\n\r\n{}")

    server.fault = endless
    with pytest.raises(TryAgain, match="an answer without a length"):
        peer(server.url).ask("POST", "x")

    def nonsense(request: Request, forward: Forward) -> Reply:
        raise HangUp(b"SSH-2.0-OpenSSH\r\n")

    server.fault = nonsense
    with pytest.raises(TryAgain, match=r"SSH-2\.0"):
        peer(server.url).ask("POST", "x")
    assert issubclass(http.client.BadStatusLine, http.client.HTTPException)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_file_that_the_system_cannot_send_is_read(
    server: BadHttp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """At once, or after a part."""
    (tmp_path / "file").write_bytes(DATA)
    real, left = os.sendfile, [0, 1]

    def some(out: int, fd: int, at: int, count: int) -> int:
        if not left[0]:
            raise OSError(number, os.strerror(number))
        left[0] -= 1
        return real(out, fd, at, min(count, 3))

    monkeypatch.setattr("pww.transport.file_part.os.sendfile", some)
    with (tmp_path / "file").open("rb") as file:
        for left[0] in (0, 2):
            reply = connection(server.url).request(
                "PUT", "/x", {}, FilePart(file.fileno(), 2, len(DATA))
            )
            assert reply.read() == DATA[2:]


def test_whoever_takes_nothing_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(32 << 20))
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        (tmp_path / "file").open("rb") as file,
    ):
        port = listening.getsockname()[1]
        body = FilePart(file.fileno(), 0, 32 << 20)
        with pytest.raises(TimeoutError, match="timed out"):
            connection(f"http://127.0.0.1:{port}", timeout_s=0.2).request("PUT", "/x", {}, body)


def test_what_is_read_after_an_interrupt_is_no_cipher_text(tmp_path: Path) -> None:
    """A late piece's connection is shut down by another thread while its own reads on."""
    house = Gatehouse.build(tmp_path, SystemClock())
    context = credentials.server_tls(house.folder).context()
    answered = threading.Event()

    def answer(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as sock:
            sock.recv(1 << 16)
            sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 131072\r\n\r\n" + DATA[: 1 << 16])
            answered.set()
            with suppress(OSError):
                sock.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        http_ = HttpConnection(url, tls=house.bundle("lumi/a").tls, timeout_s=10.0)
        try:
            reply = http_.request("GET", "/x", {})
            assert answered.wait(10)
            http_.interrupt()
            got = bytearray()
            with suppress(*Faults):
                while more := reply.read1(1 << 14):
                    got += more
            assert got == DATA[: len(got)]
        finally:
            http_.drop()
            thread.join()
