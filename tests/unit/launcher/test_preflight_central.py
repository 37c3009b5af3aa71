"""The way to a central without keys: its ports, its clock, proxies, how fast bytes go."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from bad_http import BadHttp
from blob_desk import Desk

from pww.clock import Clock, ManualClock, SystemClock
from pww.config import paths
from pww.config.load import compose
from pww.launcher import preflight_central
from pww.launcher.finding import Finding
from pww.transport import blob_rates

DATE = "Sun, 09 Sep 2001 01:46:40 GMT"  # where ManualClock starts


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    monkeypatch.setattr(blob_rates, "LONG_S", 0.0)
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def told(*words: str, clock: Clock | None = None, host: str = "") -> dict[str, Finding]:
    """`host`: the central's, which a configuration without keys would refuse."""
    config = compose(list(words))
    if host:
        url = config.central.url.replace("127.0.0.1", host)
        central = config.central.model_copy(update={"url": url})
        config = config.model_copy(update={"central": central})
    found = preflight_central.findings(config, clock=clock or SystemClock())
    return {one.what: one for one in found}


def at(url: str, port: int, **more: object) -> list[str]:
    keys = {"port": port, "aggregator_port": port, "blob_port": port, **more}
    return [f"central.url={url}:{port}", *(f"central.{key}={keys[key]}" for key in keys)]


@pytest.fixture
def port() -> Iterator[int]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200 if self.path == "/health" else 404)
            self.send_header("Date", DATE)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk.open(tmp_path / "store")
    yield opened
    opened.close()


def test_each_port_of_the_central_and_its_clock(port: int) -> None:
    words = at("http://127.0.0.1", port, blob_port=1)
    clock = ManualClock()
    found = told(*words, clock=clock)
    assert found["leases"].told == f"http://127.0.0.1:{port}: answers, round trip 0 ms"
    assert found["leases"].figures == {"round_trip_s": 0.0}
    assert found["deltas"].state == "good"
    assert found["blobs"].state == "bad"
    assert found["blobs"].told.startswith("http://127.0.0.1:1: no answer (")
    assert (found["clock"].state, found["clock"].told) == ("good", "+0 s against the central's")
    assert not {"up", "down"} & set(found), "there is no way to measure"
    clock.jump_wall(-60)
    late = told(*words, clock=clock)["clock"]
    assert (late.state, late.told) == ("warning", "-60 s against the central's")
    assert late.figures == {"ahead_s": -60.0}


def test_how_fast_bytes_go_both_ways(desk: Desk) -> None:
    found = told(*at("http://127.0.0.1", desk.server.port))
    for way in ("up", "down"):
        one = found[way]
        assert one.state == "good"
        rate = one.figures["bytes_per_s"]
        assert one.told == (
            f"{rate / 1e6:.1f} MB/s over 16 streams or more: a gigabyte takes {1e9 / rate:.0f} s"
        )
        assert one.figures["moved_bytes"] == 1 << 20


def test_a_slow_way_is_a_warning(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_central, "SLOW_BYTES_PER_S", 1e15)
    found = told(*at("http://127.0.0.1", desk.server.port))
    assert (found["up"].state, found["down"].state) == ("warning", "warning")


def test_payloads_that_go_another_way_are_not_measured(desk: Desk) -> None:
    found = told(*at("http://127.0.0.1", desk.server.port), "transport=inline")
    assert list(found) == ["leases", "clock", "deltas"]


def test_through_a_proxy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run's requests go; its secret is not shown."""
    with BadHttp(desk.server.port, password="bWU6c2VjcmV0") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{proxy.port}")
        words = at("http://127.0.0.1", 29510)
        found = told(*words, host="central.invalid")
        assert [one.state for one in found.values()] == ["good"] * 6
        assert len({request.target for request in proxy.requests}) == 3  # health and two ways
        for what in ("leases", "deltas", "blobs", "up", "down"):
            assert f" through http://127.0.0.1:{proxy.port}: " in found[what].told
            assert "secret" not in found[what].told
        asked = len(proxy.requests)
        monkeypatch.setenv("NO_PROXY", "central.invalid")
        found = told(*words, host="central.invalid")
        assert found["leases"].told.startswith("http://central.invalid:29510: no answer (")
        assert told(*at("http://127.0.0.1", desk.server.port))["up"].state == "good"
        assert len(proxy.requests) == asked


def test_a_proxy_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://me:secret@proxy:1080")
    one = told(*at("http://127.0.0.1", 29510), host="central.invalid")["central"]
    assert one.state == "bad"
    assert one.told.startswith("the proxy proxy:1080 for http URLs is not an http:// proxy")


def test_something_else_answers(desk: Desk, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with BadHttp(desk.server.port, lambda request, forward: portal(forward(request))) as front:
        found = told(*at("http://127.0.0.1", front.port))
    assert list(found) == ["leases", "deltas", "blobs"]
    assert "HTTP 302, which is no central of this version; check central.url" in found["blobs"].told
    # A server that says 501 to a probe is asked again for a while
    monkeypatch.setattr(preflight_central, "ASK_S", 0.5)
    found = told(*at("http://127.0.0.1", port))
    assert found["up"].state == "bad"


def portal(reply):  # type: ignore[no-untyped-def]
    reply.status = 302
    return reply


def test_a_bundle_that_is_none(tmp_path: Path) -> None:
    words = ["central.url=https://central.example:29510", f"central.bundle={tmp_path}/nothing"]
    one = told(*words)["central"]
    assert one.state == "bad"
    assert "nothing" in one.told


def test_a_run_alone_asks_nobody() -> None:
    assert told() == {}
