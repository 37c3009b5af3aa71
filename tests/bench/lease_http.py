"""The coordinator as 64 clients see it: TLS, credentials and fsync on, server and clients apart.

Both share two cores. A client is a connection that acquires and releases in turn, each call with
its token and, where the protocol has one, a new idempotency key; it sends the next when it has the
answer. Everything of the server is the product's: door, group commit, ledger, uvicorn with TLS.
"""

import asyncio
import json
import ssl
import sys
import tempfile
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import httpx
import numpy as np
from figures import figure

from pww.central import credentials
from pww.central.coordinator import Coordinator
from pww.central.door import Door
from pww.central.http import CoordinatorApp
from pww.central.ledger import Ledger
from pww.clock import SystemClock
from pww.config.load import compose
from pww.lease.space import BlockSpace
from pww.transport.bundle import Bundle
from pww.transport.serve import AsgiServer
from pww.wire import Register

CLIENTS = 64
SECONDS = 10.0
WARM_S = 2.0
SPACE = BlockSpace(
    num_windows=10**9, block_windows=1, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
)
REPLICAS = [f"bench/r{i:02d}" for i in range(CLIENTS)]


def serve(folder: Path, ready: Connection) -> None:
    """The server's process: tells its port, serves until it is told to end, tells what is on."""
    clock = SystemClock()
    ledger = Ledger(folder / "ledger.sqlite")
    (synchronous,) = ledger.rows("PRAGMA synchronous")[0]
    (journal,) = ledger.rows("PRAGMA journal_mode")[0]
    books = Coordinator(ledger, SPACE, darl=compose([]).darl, aggregator_port=0, clock=clock)
    books.seed(generation="round-000000", state_hash="0" * 64)
    tls = credentials.server_tls(folder / "keys")
    server = AsgiServer(host="127.0.0.1", port=0, key="central.port", tls=tls)
    app = CoordinatorApp(books, Door.of(folder / "keys", state=folder, clock=clock), clock=clock)
    server.start(app, name="coordinator")
    ready.send((server.port, synchronous, journal))
    ready.recv()
    server.stop()
    app.close()
    books.verify()
    (events,) = ledger.rows("SELECT COUNT(*) FROM lease_events")[0]
    ledger.close()
    ready.send(events)


def trust(folder: Path) -> ssl.SSLContext:
    """What a site trusts: the central's own CA."""
    site = Bundle.read(folder / "keys/bundles/bench", replica=REPLICAS[0], clock=SystemClock())
    return site.tls


def must_be_secure(folder: Path, port: int, synchronous: object, journal: object) -> None:
    """Ends the bench unless TLS, credentials and fsync are on."""
    body = json.dumps({"replica": REPLICAS[0], "incarnation": "1" * 32, "leases": []})
    url = f"https://127.0.0.1:{port}/v1/release"
    refused = httpx.post(url, content=body, verify=trust(folder), trust_env=False).status_code
    with suppress(httpx.TransportError):
        plain = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        sys.exit(f"the port answers without TLS: {plain.status_code}")
    if refused != 401 or synchronous != 2 or journal != "wal":
        sys.exit(f"not durable or open to all: {refused}, {synchronous}, {journal}: no figures")
    print(
        json.dumps({"tls": True, "credentials": True, "fsync": "WAL, synchronous=FULL"}), flush=True
    )


class Client:
    """One connection of one replica; plain HTTP/1.1 over asyncio's TLS streams."""

    def __init__(self, folder: Path, replica: str, number: int) -> None:
        site = Bundle.read(folder / "keys/bundles/bench", replica=replica, clock=SystemClock())
        self.key, self.replica, self.incarnation = site.key, replica, f"{number + 1:032x}"
        self.calls = 0
        self.took_s: list[float] = []

    async def connect(self, port: int, tls: ssl.SSLContext) -> None:
        """Opens the connection, the session and the membership."""
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=tls, server_hostname="localhost"
        )
        opening = self.key.open(self.replica, self.incarnation)
        opened = json.loads(await self.post("open", opening.model_dump_json(), ""))
        self.token = f"authorization: Bearer {opened['token']}\r\n"
        register = Register(
            replica=self.replica, incarnation=self.incarnation, node_key="", run="",
            space=SPACE.info(), model="a" * 64, last_round=0,
        )  # fmt: skip
        await self.post("register", register.model_dump_json(), self.token)

    async def post(self, name: str, body: str, token: str) -> bytes:
        """One request and the body of its answer; anything but 200 ends the bench."""
        self.writer.write(
            f"POST /v1/{name} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            f"content-type: application/json\r\n{token}\r\n{body}".encode()
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        content = await self.reader.readexactly(length)
        if b" 200 " not in head[:16]:
            sys.exit(f"{name}: {head!r} {content!r}")
        return content

    async def timed(self, name: str, body: str) -> bytes:
        """One measured request."""
        begin = perf_counter()
        content = await self.post(name, body, self.token)
        self.took_s.append(perf_counter() - begin)
        return content

    async def run(self, stop: asyncio.Event) -> None:
        """Acquires and releases until the time is over."""
        who = f'"replica":"{self.replica}","incarnation":"{self.incarnation}"'
        while not stop.is_set():
            self.calls += 1
            key = f"{int(self.incarnation, 16) << 64 | self.calls:032x}"
            body = f'{{{who},"key":"{key}","num_blocks":3,"ttl_s":60.0}}'
            answer = json.loads(await self.timed("acquire", body))["answer"]
            await self.timed("release", f'{{{who},"leases":[{answer["lease"]["id"]}]}}')


async def load(folder: Path, port: int) -> tuple[float, float]:
    """Mutating requests a second, and the 99th percentile of their time in ms."""
    tls = trust(folder)
    clients = [Client(folder, replica, i) for i, replica in enumerate(REPLICAS)]
    await asyncio.gather(*(client.connect(port, tls) for client in clients))
    stop = asyncio.Event()
    tasks = [asyncio.create_task(client.run(stop)) for client in clients]
    await asyncio.sleep(WARM_S)
    for client in clients:
        client.took_s.clear()
    begin = perf_counter()
    await asyncio.sleep(SECONDS)
    took_s = [t for client in clients for t in client.took_s]
    elapsed_s = perf_counter() - begin
    stop.set()
    await asyncio.gather(*tasks)
    for client in clients:
        client.writer.close()
    return len(took_s) / elapsed_s, float(np.percentile(took_s, 99)) * 1000


def http_figures(folder: Path) -> None:
    """Prints `http_durable_per_s` and `http_p99_ms`, measured on the disk of `folder`."""
    credentials.init(
        folder / "keys", hosts=["localhost"], replicas=REPLICAS, port=29510, clock=SystemClock()
    )
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(folder, theirs))
    process.start()
    try:
        port, synchronous, journal = ours.recv()
        must_be_secure(folder, port, synchronous, journal)
        per_s, p99_ms = asyncio.run(load(folder, port))
        ours.send("end")
        events = ours.recv()
        assert events > per_s * SECONDS, "every request left its event in the ledger"
    finally:
        process.join(30)
        process.kill()
    figure("http_durable_per_s", per_s, "requests/s", ">= 2000")
    figure("http_p99_ms", p99_ms, "ms", "< 50")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        http_figures(Path(name))
