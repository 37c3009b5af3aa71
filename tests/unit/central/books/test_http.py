"""The coordinator behind a real uvicorn on loopback: replies, refusals, what it lets through."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from pww.central.http import MAX_BODY_BYTES, CoordinatorApp
from pww.clock import SystemClock
from pww.wire import Acquired, Instruction, Refusal, Register, Registered


@pytest.fixture
def client(desk) -> Iterator[httpx.Client]:
    app = CoordinatorApp(desk.books, clock=SystemClock())
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, lifespan="off",
        ws="none",
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    clock, never = SystemClock(), threading.Event()
    deadline_s = clock.monotonic() + 30
    while not server.started:
        assert clock.monotonic() < deadline_s
        clock.wait(never, 0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        yield client
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()
    app.close()


def register(desk, **changes: object) -> dict[str, object]:
    message = Register(
        replica="s/a", incarnation="1" * 32, node_key="", run="", space=desk.space.info(),
        model="a" * 64, last_round=0,
    )  # fmt: skip
    return json.loads(message.model_dump_json()) | changes


def test_the_five_calls(client: httpx.Client, desk) -> None:
    who = {"replica": "s/a", "incarnation": "1" * 32}
    reply = client.post("/v1/register", json=register(desk))
    assert reply.headers["content-type"] == "application/json"
    assert Registered.model_validate_json(reply.content).run == desk.books.run
    body = who | {"key": "2" * 32, "num_blocks": 3, "ttl_s": 30.0}
    answers = [client.post("/v1/acquire", json=body) for _ in range(2)]
    assert answers[0].content == answers[1].content
    lease = Acquired.model_validate_json(answers[0].content).answer.lease
    body = who | {"leases": [{"id": lease.id, "ttl_s": 30.0}], "windows_per_s": 1.5}
    told = Instruction.model_validate_json(client.post("/v1/heartbeat", json=body).content)
    assert told.leases[0].valid
    assert client.post("/v1/release", json=who | {"leases": [lease.id]}).json() == {}
    assert client.post("/v1/leave", json=who | {"keep": []}).json() == {}
    assert desk.coverage() == (0, 0, 20)


def test_health_and_status(client: httpx.Client, desk) -> None:
    assert client.get("/health").json() == {"ok": True}
    client.post("/v1/register", json=register(desk))
    status = client.get("/status").json()
    assert status == json.loads(json.dumps(desk.books.status())) | {"members": status["members"]}
    assert status["coverage"] == {
        "blocks": 20,
        "committed": 0,
        "leased": 0,
        "unassigned": 20,
        "quarantined": 0,
    }
    assert status["members"][0]["replica"] == "s/a"


def test_metrics_are_what_prometheus_reads(client: httpx.Client, desk) -> None:
    desk.site("s/a").contribute(4)
    desk.site("s/b").acquire(3)
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, *sorted(v for k, v in sample.labels.items() if k != "run")): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }
    assert found[("pww_merges_total",)] == 1
    blocks = ("committed", "leased", "unassigned", "quarantined")
    assert [found[("pww_blocks", state)] for state in blocks] == [4, 3, 13, 0]
    assert found[("pww_member_committed_blocks_total", "s/a")] == 4
    assert found[("pww_member_live", "s/b")] == 1
    assert found[("pww_complete",)] == 0


def refusal(reply: httpx.Response, status: int, code: str) -> Refusal:
    assert reply.status_code == status
    told = Refusal.model_validate_json(reply.content)
    assert told.code == code
    assert "Traceback" not in reply.text
    return told


def test_refusals_keep_their_code_and_advice(client: httpx.Client, desk) -> None:
    client.post("/v1/register", json=register(desk))
    twin = client.post("/v1/register", json=register(desk, incarnation="3" * 32))
    told = refusal(twin, 409, "replica_taken")
    assert told.retry_after_s == 10.0
    assert "replica=" in told.message
    body = {"replica": "s/a", "incarnation": "9" * 32, "leases": []}
    refusal(client.post("/v1/heartbeat", json=body), 409, "unknown_incarnation")


@pytest.mark.parametrize(
    "changes",
    [
        {"replica": "../x"},
        {"replica": "s/../../etc/passwd"},
        {"replica": "S/A"},
        {"replica": "s/a\n"},
        {"incarnation": "1' OR 1=1"},
        {"leases": [-1]},
        {"leases": ["1"]},
        {"last_round": 2**62},
        {"extra": 1},
        {"protocol": 9},
        {"versions": {"a": 1}},
        {"versions": {"a" * 65: "1"}},
        {"versions": {str(i): "1" for i in range(33)}},
        {"node_key": "no key"},
        {"node_key": "k" * 1001},
        {"run": "9" * 31},
    ],
)
def test_a_bad_message_is_400_without_effect(client: httpx.Client, desk, changes) -> None:
    told = refusal(client.post("/v1/register", json=register(desk, **changes)), 400, "bad_request")
    assert len(told.message) < 2000
    assert desk.books.live() == ()
    assert desk.ledger.rows("SELECT * FROM members") == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"null", b"[" * 100_000, b'{"replica": ' + b"1" * 5000 + b"}"]
)
def test_bytes_that_are_no_json_are_400(client: httpx.Client, body: bytes) -> None:
    refusal(client.post("/v1/acquire", content=body), 400, "bad_request")


@pytest.mark.parametrize("size_bytes", [MAX_BODY_BYTES + 1, 10_000_000])
def test_a_large_body_is_413_without_effect(client: httpx.Client, desk, size_bytes: int) -> None:
    body = register(desk)
    body["node_key"] = "k" * size_bytes
    refusal(client.post("/v1/register", json=body), 413, "too_large")
    assert desk.books.live() == ()
    assert client.get("/health").json() == {"ok": True}


def test_an_endless_body_is_cut_off(client: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 2**20

    with suppress(httpx.TransportError):  # the connection may be dropped while we still send
        refusal(client.post("/v1/register", content=endless()), 413, "too_large")
    assert client.get("/health").json() == {"ok": True}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/../status/x", 404),
        ("POST", "/v1/steal", 404),
        ("GET", "/v1/register", 405),
        ("POST", "/status", 405),
        ("GET", "/docs", 404),
    ],
)
def test_no_other_route(client: httpx.Client, method: str, path: str, status: int) -> None:
    told = refusal(client.request(method, path), status, "bad_request")
    assert "no such route here" in told.message


def test_a_fault_of_ours_is_500_without_its_text(client, desk, monkeypatch, caplog) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(desk.books._leasing, "register", broken)
    monkeypatch.setattr(desk.books, "status", broken)
    with caplog.at_level(logging.ERROR, logger="pww.central"):
        replies = [client.post("/v1/register", json=register(desk)), client.get("/status")]
    for reply in replies:
        assert reply.status_code == 500
        assert "secret" not in reply.text
        assert "its log says why" in reply.text
    assert caplog.text.count("secret detail") >= 2


def test_many_clients_at_once(client: httpx.Client, desk) -> None:
    """Threads over HTTP: every lease once, nobody sees a locked database."""
    who = [{"replica": f"s/{i}", "incarnation": f"{i + 1:032x}"} for i in range(8)]
    for each in who:
        assert client.post("/v1/register", json=register(desk, **each)).status_code == 200
    spans: list[tuple[int, int]] = []

    def work(i: int) -> None:
        for k in range(2):
            body = who[i] | {"key": f"{i * 10 + k:032x}", "num_blocks": 1, "ttl_s": 30.0}
            reply = client.post("/v1/acquire", json=body)
            span = reply.json()["answer"]["lease"]["span"]
            spans.append((span["start"], span["stop"]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(spans) == [(i, i + 1) for i in range(16)]
