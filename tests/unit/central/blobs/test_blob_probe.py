"""The probe of the blob store's port: what it takes and gives, and that nothing of it stays."""

import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from bad_http import BadHttp, HangUp
from blob_desk import QUICK, Desk
from gatehouse import Gatehouse

from pww.central import blob_probe
from pww.clock import SystemClock
from pww.errors import CentralError, Refused
from pww.transport import blob_rates
from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BlobSite
from pww.transport.blob_wire import PROBE_BYTES, PROBE_ROUTE
from pww.transport.carrier import Meter, Tuning
from pww.wire import Refusal


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    opened = Desk.open(tmp_path_factory.mktemp("store"))
    yield opened
    opened.close()


@pytest.fixture
def http(desk: Desk) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=desk.url, trust_env=False) as client:
        yield client


def link(url: str, tuning: Tuning = QUICK) -> BlobLink:
    site = BlobSite(url, lambda refused: "", None, tuning.timeout_s)
    return BlobLink(
        site, tuning, SystemClock(), threading.Event(), np.random.default_rng(0), Meter()
    )


@pytest.mark.parametrize("size", [1, 65_536, 65_537, PROBE_BYTES])
def test_it_gives_so_many_bytes_that_no_proxy_shrinks(http: httpx.Client, size: int) -> None:
    body = http.get(f"{PROBE_ROUTE}/{size}").content
    assert len(body) == size
    assert len(zlib.compress(body[:65_536])) >= min(size, 65_536)


def test_it_takes_all_of_a_body_and_keeps_none(
    http: httpx.Client, desk: Desk, tmp_path: Path
) -> None:
    before = desk.store.used_bytes
    for size in (1, PROBE_BYTES, 1):  # on one connection: nothing of a body is left in it
        assert http.put(PROBE_ROUTE, content=b"x" * size).status_code == 204
    assert desk.store.used_bytes == before == 0


@pytest.mark.parametrize(
    ("method", "path", "size", "status", "told"),
    [
        ("GET", f"{PROBE_ROUTE}/0", 0, 413, "a probe of 0 bytes: 1 to 4194304"),
        ("GET", f"{PROBE_ROUTE}/4194305", 0, 413, "a probe of 4194305 bytes"),
        ("PUT", PROBE_ROUTE, PROBE_BYTES + 1, 413, "a probe of 4194305 bytes"),
        ("PUT", PROBE_ROUTE, 0, 413, "a probe of 0 bytes"),
        ("PUT", f"{PROBE_ROUTE}/7", 7, 404, f"PUT {PROBE_ROUTE}, GET {PROBE_ROUTE}/SIZE"),
        ("GET", PROBE_ROUTE, 0, 404, "no such route here"),
        ("POST", PROBE_ROUTE, 7, 404, "no such route here"),
        ("GET", f"{PROBE_ROUTE}/123456789", 0, 404, "no such route here"),
    ],
)
def test_what_it_refuses(
    http: httpx.Client, method: str, path: str, size: int, status: int, told: str
) -> None:
    reply = http.request(method, path, content=b"x" * size)
    assert reply.status_code == status
    assert told in Refusal.model_validate_json(reply.content).message


def test_a_body_of_unknown_length(http: httpx.Client) -> None:
    reply = http.put(PROBE_ROUTE, content=iter([b"x", b"y"]))
    assert reply.status_code == 400
    assert "a probe comes with Content-Length" in reply.text


def test_a_silent_client_is_told_so(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pww.central.blob_http.SILENT_S", 0.05)
    with socket.create_connection(("127.0.0.1", desk.server.port)) as sock:
        head = f"PUT {PROBE_ROUTE} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"
        sock.sendall(head.encode())
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_strangers_get_no_bytes(tmp_path: Path) -> None:
    house = Gatehouse.build(tmp_path, SystemClock())
    guarded = Desk.open(tmp_path / "store", door=house.door())
    try:
        with httpx.Client(base_url=guarded.url, trust_env=False) as client:
            assert client.get(f"{PROBE_ROUTE}/9").status_code == 401
            assert client.put(PROBE_ROUTE, content=b"x").status_code == 401
        with pytest.raises(Refused, match="without a credential"):
            blob_rates.measure(link(guarded.url), "up")
    finally:
        guarded.close()


@pytest.mark.parametrize("way", ["up", "down"])
def test_both_ways_are_measured_over_several_connections(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, way
) -> None:
    monkeypatch.setattr(blob_rates, "FIRST_BYTES", 1 << 20)
    monkeypatch.setattr(blob_rates, "MOST_BYTES", 32 << 20)
    clock = SystemClock()
    start = clock.monotonic()
    found = blob_rates.measure(link(desk.url), way)
    took_s = clock.monotonic() - start
    assert found.streams == QUICK.min_streams
    # No faster than all of it in the whole time would have been
    assert found.bytes_per_s >= found.moved_bytes / took_s
    assert found.moved_bytes >= 16 << 20 or took_s >= blob_rates.LONG_S


def test_a_slow_way_is_not_measured_for_long(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first amount is enough where it takes long enough."""
    monkeypatch.setattr(blob_rates, "LONG_S", 0.0)
    found = blob_rates.measure(link(desk.url), "down")
    assert found.moved_bytes == blob_rates.FIRST_BYTES


def test_what_breaks_off_is_asked_for_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_rates, "LONG_S", 0.0)
    cut = threading.Semaphore(1)

    def once(request, forward):
        reply = forward(request)
        if request.method == "GET" and cut.acquire(blocking=False):
            raise HangUp(reply.sent()[:-10])
        return reply

    with BadHttp(desk.server.port, once) as front:
        told = link(front.url)
        assert blob_rates.measure(told, "down").moved_bytes == 1 << 20
        assert told.meter.read().retries == 1


def test_a_central_without_a_probe(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_probe, "is_probe", lambda path: False)
    with pytest.raises((Refused, CentralError), match="no such route here"):
        blob_rates.measure(link(desk.url), "down")
