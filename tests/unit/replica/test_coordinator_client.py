"""The lease client against a real server that misbehaves."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from pww.clock import SystemClock
from pww.config.schema import Transport
from pww.errors import CentralError, Refused, Stopped, Unreachable
from pww.replica.coordinator_client import MAX_REPLY_BYTES, HttpCoordinator
from pww.transport.serve import AsgiServer
from pww.wire import (
    Acquire,
    Acquired,
    Done,
    Exhausted,
    Heartbeat,
    Instruction,
    Leave,
    Refusal,
    Register,
    Registered,
    Release,
    SpaceInfo,
)

TOKEN = "0" * 32
DIGEST = "1" * 64
TRANSPORT = Transport(
    kind="inline",
    url="none",
    down="whole",
    limit_mb=64,
    timeout_s=1.0,
    poll_s=0.1,
    retry_first_s=0.01,
    retry_max_s=0.05,
)
ACQUIRE = Acquire(replica="s/a", incarnation=TOKEN, key=TOKEN, num_blocks=1, ttl_s=60.0)
LEAVE = Leave(replica="s/a", incarnation=TOKEN)
EXHAUSTED = Acquired(answer=Exhausted(committed=3), round=2)

Answer = Callable[[Request], Response]


def as_json(message: Any, status: int = 200, **headers: str) -> Answer:
    body = message.model_dump_json()
    return lambda _: Response(body, status, headers, media_type="application/json")


class Server:
    """Gives the answers of a list in turn; the last one stays."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[tuple[str, bytes]] = []
        self._server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
        app = Starlette(routes=[Route("/v1/{name}", self._answer, methods=["POST"])])
        self._server.start(app, name="fake")
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.close = self._server.stop

    async def _answer(self, request: Request) -> Response:
        self.seen.append((request.path_params["name"], await request.body()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(request)


@pytest.fixture
def server() -> Iterator[Server]:
    built = Server()
    yield built
    built.close()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


class Connect(Protocol):
    def __call__(self, url: str, *, deadline_s: float = 1.0) -> HttpCoordinator: ...


@pytest.fixture
def client(stop: threading.Event) -> Iterator[Connect]:
    built = []

    def connect(url: str, *, deadline_s: float = 1.0) -> HttpCoordinator:
        one = HttpCoordinator(
            url, TRANSPORT, clock=SystemClock(), stop=stop, random=np.random.default_rng(0),
            deadline_s=deadline_s,
        )  # fmt: skip
        built.append(one)
        return one

    yield connect
    for one in built:
        one.close()


def test_the_five_calls(server: Server, client: Connect) -> None:
    space = SpaceInfo(
        num_windows=1, block_windows=1, window_tokens=1, seed=0, epochs=1, permutation="p",
        corpus=DIGEST, digest=DIGEST,
    )  # fmt: skip
    register = Register(
        replica="s/a", incarnation=TOKEN, node_key="", run="", space=space, model=DIGEST,
        last_round=0,
    )  # fmt: skip
    heartbeat = Heartbeat(replica="s/a", incarnation=TOKEN, leases=())
    registered = Registered(
        run=TOKEN, round=0, aggregator_port=1, heartbeat_s=3.0, detect_s=10.0, leases=(),
    )  # fmt: skip
    instruction = Instruction(leases=(), round=1)
    server.answers = [as_json(m) for m in (registered, EXHAUSTED, instruction, Done(), Done())]
    site = client(server.url + "/")
    assert site.register(register) == registered
    assert site.acquire(ACQUIRE) == EXHAUSTED
    assert site.heartbeat(heartbeat) == instruction
    release = Release(replica="s/a", incarnation=TOKEN, leases=(1,))
    assert site.release(release) == Done()
    assert site.leave(LEAVE) == Done()
    names = [name for name, _ in server.seen]
    assert names == ["register", "acquire", "heartbeat", "release", "leave"]
    assert Register.model_validate_json(server.seen[0][1]) == register


def test_faults_that_pass_are_repeated_with_the_same_bytes(server: Server, client: Connect) -> None:
    full = Refusal(code="too_large", message="later", retry_after_s=0.01)
    server.answers = [
        lambda _: Response("oops", 500),
        lambda _: HTMLResponse("<html>bad gateway</html>", 502),
        lambda _: Response("", 503, {"retry-after": "0"}),
        as_json(full, 429),
        as_json(EXHAUSTED),
    ]
    site = client(server.url, deadline_s=10.0)
    assert site.acquire(ACQUIRE) == EXHAUSTED
    assert site.num_retries == 4
    assert len({body for _, body in server.seen}) == 1


def test_retry_after_is_obeyed(server: Server, client: Connect) -> None:
    server.answers = [lambda _: Response("", 503, {"retry-after": "1"}), as_json(EXHAUSTED)]
    clock = SystemClock()
    start_s = clock.monotonic()
    client(server.url, deadline_s=10.0).acquire(ACQUIRE)
    assert clock.monotonic() - start_s >= 1.0


def test_who_is_asked_to_wait_hears_why(server: Server, client: Connect, caplog) -> None:
    wait = Refusal(code="not_ready", message="no aggregator yet", retry_after_s=0.01)
    server.answers = [as_json(wait, 503), as_json(EXHAUSTED)]
    site = client(server.url, deadline_s=10.0)
    assert site.acquire(ACQUIRE) == EXHAUSTED
    assert site.num_retries == 1
    assert "no answer to acquire (HTTP 503: no aggregator yet); trying again" in caplog.text


def test_a_refusal_is_final(server: Server, client: Connect) -> None:
    refusal = Refusal(code="replica_taken", message="use replica=b", retry_after_s=4.0)
    server.answers = [as_json(refusal, 409)]
    with pytest.raises(Refused, match="use replica=b") as caught:
        client(server.url).acquire(ACQUIRE)
    assert (caught.value.code, caught.value.retry_after_s) == ("replica_taken", 4.0)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda _: HTMLResponse("<html>hello</html>"), r"HTTP 200 \(text/html.*<html>hello"),
        (lambda _: HTMLResponse("<h1>no</h1>", 404), r"HTTP 404 \(text/html"),
        (lambda _: Response("", 302, {"location": "/x"}), "HTTP 302"),
        (lambda _: JSONResponse({"answer": {"kind": "granted"}}), "no answer of a pww central"),
        (lambda _: JSONResponse({"extra": 1}), "check central.url"),
        (lambda _: Response("{", media_type="application/json"), "HTTP 200"),
        (lambda _: Response(b" " * (MAX_REPLY_BYTES + 1)), f"more than {MAX_REPLY_BYTES} bytes"),
        (lambda _: Response(b"x" * 99, headers={"content-encoding": "gzip"}), "unreadable body"),
    ],
)
def test_what_is_no_central_says_so_at_once(
    server: Server, client: Connect, answer: Answer, text: str
) -> None:
    server.answers = [answer]
    with pytest.raises(CentralError, match=text):
        client(server.url).acquire(ACQUIRE)
    assert len(server.seen) == 1


def test_a_slow_server_is_unreachable(client: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"no usable answer to acquire within 1\.5 s"):
            client(url, deadline_s=1.5).acquire(ACQUIRE)


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", b"SSH-2.0-OpenSSH\r\n"],
    ids=["nothing", "early end", "another protocol"],
)
def test_a_connection_that_ends_early_is_repeated(client: Connect, start: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        done = threading.Event()
        calls = []

        def serve() -> None:
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(1.0)
                    calls.append(connection.recv(65536))
                    connection.sendall(start)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").acquire(ACQUIRE)
        done.set()
        thread.join(5.0)
        assert len(calls) > 1


def test_nobody_there(client: Connect, stop: threading.Event) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(Unreachable, match=r"the central at http://127.0.0.1:\d+ gave no usable"):
        client(url, deadline_s=0.2).acquire(ACQUIRE)
    stop.set()
    clock = SystemClock()
    start_s = clock.monotonic()
    with pytest.raises(Stopped):
        client(url).leave(LEAVE)
    assert clock.monotonic() - start_s < 3.0


@pytest.mark.parametrize("url", ["central:29510", "ftp://x", "", "http://", "http://[::1"])
def test_a_bad_url_is_named(client: Connect, url: str) -> None:
    with pytest.raises(CentralError, match="is no http or https URL"):
        client(url)


def test_a_call_that_was_given_up_and_comes_again_is_a_repeat(client: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    connected = client(url, deadline_s=0.0)
    for number in range(3):
        with pytest.raises(Unreachable, match="1 tries"):
            connected.acquire(ACQUIRE)
        assert connected.num_retries == number
    with pytest.raises(Unreachable):
        connected.heartbeat(Heartbeat(replica="s/a", incarnation=TOKEN, leases=()))
    assert connected.num_retries == 2, "another call"
