"""The blob store's port: what it answers to strangers, to nonsense, and to ranges."""

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import google_crc32c
import httpx
import numpy as np
import pytest
from blob_desk import PIECE, Desk, carrier, info_of, made
from gatehouse import Gatehouse

from pww.central import credentials
from pww.central.blob_http import BlobApp
from pww.central.blobs import BlobStore
from pww.central.tokens import Identity, Tokens, secret_in
from pww.clock import ManualClock, SystemClock
from pww.errors import Refused
from pww.transport.blob_wire import CRC
from pww.wire import Refusal

A = np.random.default_rng(0).bytes(256_000)
INFO = info_of(A)
OBJECT = f"/v1/blobs/{INFO.digest}"
UPLOAD = f"{OBJECT}/{len(A)}"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    opened = Desk.open(tmp_path_factory.mktemp("store"))
    yield opened
    opened.close()


@pytest.fixture
def http(desk: Desk) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=desk.url, trust_env=False) as client:
        yield client


@pytest.fixture
def there(desk: Desk, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "a").write_bytes(A)
    desk.store.publish(INFO, tmp_path / "a")
    yield
    desk.store.withdraw(INFO.digest)


def refusal(reply: httpx.Response, status: int, text: str) -> None:
    assert reply.status_code == status
    assert text in Refusal.model_validate_json(reply.content).message


@pytest.mark.parametrize(
    ("wanted", "status", "start", "stop"),
    [
        ({}, 200, 0, len(A)),
        ({"range": "bytes=10-19"}, 206, 10, 20),
        ({"range": "bytes=255990-"}, 206, 255990, len(A)),
        ({"range": "bytes=-7"}, 206, len(A) - 7, len(A)),
        ({"range": "bytes=0-0,5-5"}, 200, 0, len(A)),
        ({"range": "bytes=10-19", "if-range": f'"{INFO.digest}"'}, 206, 10, 20),
        ({"range": "bytes=10-19", "if-range": '"other"'}, 200, 0, len(A)),
        ({"range": "bytes=999999-"}, 416, 0, 0),
    ],
)
def test_get(
    http: httpx.Client, there: None, wanted: dict[str, str], status: int, start: int, stop: int
) -> None:
    for method in ("GET", "HEAD"):
        reply = http.request(method, OBJECT, headers=wanted)
        assert reply.status_code == status
        assert reply.headers["etag"] == f'"{INFO.digest}"'
        assert reply.headers["accept-ranges"] == "bytes"
        assert int(reply.headers["content-length"]) == stop - start
        told = {206: f"bytes {start}-{stop - 1}/{len(A)}", 416: f"bytes */{len(A)}"}.get(status)
        assert reply.headers.get("content-range") == told
        summed = status == 206 and method == "GET"
        crc = f"{google_crc32c.value(A[start:stop]):08x}" if summed else None
        assert reply.headers.get(CRC) == crc
        assert reply.content == (A[start:stop] if method == "GET" else b"")


def test_empty_object(desk: Desk, tmp_path: Path) -> None:
    path, info = made(tmp_path, 1, size_bytes=0)
    client = carrier(desk.url)
    client.put(path, info)
    client.get(info, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b""


def test_health_and_unknown(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"ok": True}
    refusal(http.get(f"/v1/blobs/{'0' * 64}"), 404, "no object 0000000000000000… here")
    refusal(http.post(f"{UPLOAD}/commit"), 409, "no such upload: begin again")
    refusal(http.put(f"{UPLOAD}/0", content=b"x"), 409, "no such upload: begin again")


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1/blobs", "/v1/blobs/", "/v1/blobs/..%2f..%2fetc%2fpasswd", "/v1/blobs/" + "A" * 64,
        "/v1/blobs/" + "a" * 63, "/v1/blobs/" + "a" * 65, OBJECT + "%0a", OBJECT + "/-1",
        OBJECT + "/1e3", OBJECT + "/" + "9" * 19, UPLOAD + "/0/0", UPLOAD + "/../x", UPLOAD + "/",
        UPLOAD + "/%d9%a1", "/v1/blobs/%00",
    ],
)  # fmt: skip
def test_no_other_route(desk: Desk, http: httpx.Client, path: str) -> None:
    """No name but 64 hex digits gets to the file system, by no method."""
    for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
        assert http.request(method, path).status_code == 404
    assert not list(desk.store._uploads.iterdir())


def test_methods(http: httpx.Client) -> None:
    for method, path in (("DELETE", OBJECT), ("PUT", UPLOAD), ("PUT", f"{UPLOAD}/commit"),
                         ("POST", f"{UPLOAD}/0"), ("GET", UPLOAD), ("POST", OBJECT),
                         ("PUT", f"{UPLOAD}/0/00000000"), ("DELETE", f"{UPLOAD}/0"),
                         ("POST", f"{UPLOAD}/commit/00000000")):  # fmt: skip
        refusal(http.request(method, path), 404, "no such route here: POST /v1/blobs/DIGEST/SIZE")


def test_pieces(desk: Desk, http: httpx.Client) -> None:
    piece, rest = A[:PIECE], A[PIECE : 2 * PIECE]
    told = http.post(UPLOAD).json()
    assert told == {"complete": False, "piece_bytes": PIECE, "missing": [[0, 4]]}
    reply = http.put(f"{UPLOAD}/0", content=iter([piece]))  # in chunks, of no told length
    refusal(reply, 400, "a piece comes with Content-Length")
    refusal(http.put(f"{UPLOAD}/4", content=piece), 404, "piece 4 of an object of 4")
    refusal(http.put(f"{UPLOAD}/0", content=piece[1:]), 422, "not 65536")
    refusal(http.put(f"{UPLOAD}/0", content=piece + b"x"), 413, f"a piece has {PIECE} at most")
    refusal(http.put(f"{UPLOAD}/3", content=piece), 422, "more than its 59392 bytes")
    for _ in range(2):  # the second time it is there already
        assert http.put(f"{UPLOAD}/0", content=piece).status_code == 204
    assert http.post(UPLOAD).json()["missing"] == [[1, 4]]
    refusal(http.post(f"{UPLOAD}/commit"), 409, "3 pieces of")
    right, other = (f"{google_crc32c.value(data):08x}" for data in (piece, rest))
    assert http.post(f"{UPLOAD}/0/{right}").status_code == 204
    refusal(http.post(f"{UPLOAD}/9/{right}"), 404, "piece 9 of an object of 4")
    for number in (0, 0, 1):  # what is missing is not right either
        refusal(http.post(f"{UPLOAD}/{number}/{other}"), 422, f"has not CRC-32C {other} here")
    assert http.post(UPLOAD).json()["missing"] == [[0, 4]]
    for _ in range(2):
        assert http.delete(UPLOAD).status_code == 204
    refusal(http.post(f"{UPLOAD}/0/{right}"), 409, "no such upload: begin again")
    assert http.get(OBJECT).status_code == 404, "a part is not visible"
    desk.store.collect([], older_than_s=0.0)


def test_logged_once(desk: Desk, http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            http.get("/v1/nonsense")
    assert len([r for r in caplog.records if "no such route" in r.getMessage()]) <= 1


def test_full(tmp_path: Path) -> None:
    """507 with a sentence; what was there stays, and it goes on when there is room."""
    desk = Desk.open(tmp_path / "store", quota_bytes=len(A) + 10)
    first, info = made(tmp_path, 2, size_bytes=20)
    try:
        carrier(desk.url).put(first, info)
        with httpx.Client(base_url=desk.url, trust_env=False) as http:
            reply = http.post(UPLOAD)
            refusal(reply, 507, "0.3 MB were announced: wait, or raise its quota")
            assert reply.headers["retry-after"] == "5"
            assert http.get(f"/v1/blobs/{info.digest}").content == first.read_bytes()
            desk.store.discard(info.digest)
            assert http.post(UPLOAD).status_code == 200
    finally:
        desk.close()


def call(app: BlobApp, method: str, path: str, events: list[dict[str, Any]],
         headers: dict[str, str] | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """The ASGI app without a server: `events` come, then nothing."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    lines = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": lines}
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return sent


@pytest.fixture
def app(tmp_path: Path) -> Iterator[BlobApp]:
    store = BlobStore(
        tmp_path / "own", quota_bytes=1 << 30, replica_bytes=1 << 30, clock=ManualClock(),
        piece_bytes=PIECE,
    )  # fmt: skip
    made_app = BlobApp(store, clock=ManualClock())
    yield made_app
    made_app.close()
    store.close()


def test_client_goes_away(app: BlobApp) -> None:
    """In the middle of a piece: nothing is answered, nothing of it counts."""
    headers = {"content-length": str(PIECE)}
    call(app, "POST", UPLOAD, [])
    half = {"type": "http.request", "body": A[:1000], "more_body": True}
    assert call(app, "PUT", f"{UPLOAD}/0", [half, {"type": "http.disconnect"}], headers) == []
    assert b'"missing":[[0,4]]' in call(app, "POST", UPLOAD, [])[1]["body"]


def test_an_outcome_that_nobody_heard_is_not_the_next_uploads(app: BlobApp) -> None:
    """Its client died on the 202, and the object was used up since."""
    key = (INFO.digest, len(A), "")
    unheard: Future[Any] = Future()
    unheard.set_exception(RuntimeError("of long ago"))
    app._commits[key] = unheard  # type: ignore[assignment]
    start, body = call(app, "POST", UPLOAD, [])
    assert (start["status"], key in app._commits) == (200, False)
    assert b'"missing":[[0,4]]' in body["body"]


def test_silent_client(app: BlobApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pww.central.blob_http.SILENT_S", 0.05)
    headers = {"content-length": str(PIECE)}
    call(app, "POST", UPLOAD, [])
    half = {"type": "http.request", "body": A[:1000], "more_body": True}
    start, body = call(app, "PUT", f"{UPLOAD}/0", [half], headers)
    assert start["status"] == 408
    assert b"nothing more of the piece came for" in body["body"]


def test_slow_commit_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No request is long: a check that takes a while is answered by 202, and its outcome kept."""
    caplog.set_level(logging.INFO, "pww.transport.blob_upload")
    monkeypatch.setattr("pww.central.blob_http.COMMIT_S", 0.02)
    desk = Desk.open(tmp_path / "store")
    go, asked = threading.Event(), []
    commit = desk.store.commit

    def slow(*args: Any, **words: Any) -> Any:
        asked.append(args)
        assert go.wait(10.0)
        return commit(*args, **words)

    monkeypatch.setattr(desk.store, "commit", slow)
    path, info = made(tmp_path, 3)

    class Waiting(SystemClock):
        waits = 0

        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            self.waits += 1
            if self.waits == 3:
                go.set()
            return event.wait(0.01)

    clock = Waiting()
    carrier(desk.url, clock=clock).put(path, info)
    assert caplog.text.count("the central checks the whole of") == 1
    assert len(asked) == 1
    assert clock.waits >= 3
    assert desk.store.path(info.digest) is not None
    desk.close()


def test_fault_of_ours(desk: Desk, http: httpx.Client, monkeypatch, caplog) -> None:
    """500 without its text, which goes to the log; a broken answer is never shorter in silence."""

    def broken(*args: Any, **words: Any) -> Any:
        raise PermissionError("secret/path")

    monkeypatch.setattr(desk.store, "begin", broken)
    reply = http.post(UPLOAD)
    refusal(reply, 500, "its log says why")
    assert "secret" not in reply.text
    assert "secret/path" in caplog.text
    monkeypatch.setattr(desk.store, "begin", lambda *a, **w: 1 / 0)
    refusal(http.post(UPLOAD), 500, "its log says why")
    assert "ZeroDivisionError" in caplog.text


def test_file_cut_under_a_download(desk: Desk, http: httpx.Client, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 64 << 20)  # more than any buffer on the way holds
    info = INFO.model_copy(update={"size_bytes": 64 << 20})
    desk.store.publish(info, path)
    with http.stream("GET", f"/v1/blobs/{info.digest}") as reply:
        chunks = reply.iter_raw(1000)
        next(chunks)
        path.write_bytes(b"")
        with pytest.raises(httpx.RemoteProtocolError):
            list(chunks)
    desk.store.withdraw(info.digest)


# ------------------------------------------------------------------------------------- credentials


@pytest.fixture
def house(tmp_path: Path) -> Gatehouse:
    return Gatehouse.build(tmp_path, SystemClock())


def test_every_route_but_health_is_closed(house: Gatehouse, tmp_path: Path) -> None:
    desk = Desk.open(tmp_path / "store", door=house.door())
    try:
        with httpx.Client(base_url=desk.url, trust_env=False) as http:
            assert http.get("/health").status_code == 200
            for method, path in (("GET", OBJECT), ("HEAD", OBJECT), ("POST", UPLOAD), ("GET", "/"),
                                 ("PUT", f"{UPLOAD}/0"), ("POST", f"{UPLOAD}/commit")):  # fmt: skip
                for value in ("", "Bearer x", "Basic eA=="):
                    reply = http.request(method, path, headers={"authorization": value})
                    assert reply.status_code == 401
            operator = (house.folder / "operator.token").read_text().strip()
            reply = http.get(OBJECT, headers={"authorization": f"Bearer {operator}"})
            assert reply.status_code == 401, "who may read the status may not read weights"
        with pytest.raises(Refused, match="without a credential") as caught:
            carrier(desk.url).get(INFO, tmp_path / "none")
        assert caught.value.code == "unauthorised"
        assert not list(desk.store._uploads.iterdir())
    finally:
        desk.close()


def test_token_is_renewed_once(house: Gatehouse, tmp_path: Path) -> None:
    """TLS and credentials on: a token that is refused is replaced, and all goes through."""
    desk = Desk.open(
        tmp_path / "store", door=house.door(), tls=credentials.server_tls(house.folder)
    )
    path, info = made(tmp_path, 5)
    who = Identity("lumi/a", "1" * 32, house.door()._allowed.now().by_replica["lumi/a"])
    good = f"Bearer {Tokens(secret_in(house.state)).mint(who, expiry_s=int(4e9))}"
    refused: list[str] = []

    def authorize(header: str) -> str:
        if header:
            refused.append(header)
        return good if refused else "Bearer old"

    try:
        url = f"https://localhost:{desk.server.port}"
        client = carrier(url, authorize=authorize, tls=house.bundle("lumi/a").tls)
        client.put(path, info)
        client.get(info, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == path.read_bytes()
        assert set(refused) == {"Bearer old"}
        assert client.transfers().retries == len(refused), "each went out once more"
        never = carrier(url, authorize=lambda h: "Bearer no", tls=house.bundle("lumi/a").tls)
        with pytest.raises(Refused, match="not of this central: open a session"):
            never.put(path, info)
    finally:
        desk.close()
