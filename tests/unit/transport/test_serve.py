"""A real port: taken before anything starts, served until stopped, and free afterwards."""

import socket
import threading

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pww.errors import StateError
from pww.transport.serve import AsgiServer


def app(text: str = "hello", entered: threading.Event | None = None, leave=None) -> Starlette:
    def hello(request) -> PlainTextResponse:
        if entered is not None:
            entered.set()
            leave.wait(30)
        return PlainTextResponse(text)

    return Starlette(routes=[Route("/", hello)])


@pytest.fixture
def server():
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port")
    yield server
    server.stop()


def get(port: int) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/", timeout=30).text


def test_it_answers_when_start_returns_and_frees_the_port_when_stop_does(server) -> None:
    assert server.port > 0
    server.start(app(), name="coordinator")
    assert get(server.port) == "hello"
    server.stop()
    with pytest.raises(httpx.TransportError):
        get(server.port)
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    server.stop()  # twice is harmless
    assert not [thread for thread in threading.enumerate() if thread.name == "coordinator"]


def test_a_taken_port_names_its_key_before_anything_starts(server) -> None:
    with pytest.raises(StateError) as refused:
        AsgiServer(host="127.0.0.1", port=server.port, key="central.aggregator_port")
    text = str(refused.value)
    assert text.startswith(f"cannot listen on 127.0.0.1:{server.port}: Address already in use.")
    assert "Set central.aggregator_port to a free port, or stop what uses it" in text


def test_a_served_port_is_taken_too(server) -> None:
    server.start(app(), name="coordinator")
    with pytest.raises(StateError, match=r"central\.port"):
        AsgiServer(host="127.0.0.1", port=server.port, key="central.port")
    assert get(server.port) == "hello"


def test_a_port_can_be_had_again_at_once_after_connections(server) -> None:
    server.start(app(), name="coordinator")
    with httpx.Client() as client:  # a connection that stays open, as sites have
        assert client.get(f"http://127.0.0.1:{server.port}/").text == "hello"
        server.stop()
    again = AsgiServer(host="127.0.0.1", port=server.port, key="central.port")
    again.start(app("again"), name="coordinator")
    assert get(again.port) == "again"
    again.stop()


def test_a_host_that_is_not_ours_is_a_sentence() -> None:
    with pytest.raises(StateError, match=r"cannot listen on 192\.0\.2\.1:1234: .*central\.port"):
        AsgiServer(host="192.0.2.1", port=1234, key="central.port")


def test_ipv6_loopback(server) -> None:
    try:
        six = AsgiServer(host="::1", port=0, key="central.port")
    except StateError as why:
        pytest.skip(str(why))  # a machine without IPv6
    six.start(app("six"), name="six")
    assert httpx.get(f"http://[::1]:{six.port}/").text == "six"
    six.stop()


def test_a_port_without_an_app_is_given_back(server) -> None:
    port = server.port
    server.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("stopped", [True, False])
def test_a_server_serves_once(server, stopped: bool) -> None:
    server.start(app(), name="coordinator")
    if stopped:
        server.stop()
    with pytest.raises(AssertionError, match="serves once"):
        server.start(app("again"), name="again")
    if not stopped:
        assert get(server.port) == "hello"


def test_an_open_request_is_answered_before_the_end(server) -> None:
    entered, leave = threading.Event(), threading.Event()
    server.start(app("late", entered, leave), name="coordinator")
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(get(server.port)))
    client.start()
    assert entered.wait(30)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    leave.set()
    client.join(30)
    stopping.join(30)
    assert answers == ["late"]
