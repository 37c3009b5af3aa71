"""A real coordinator over real HTTP and a real ledger, under a clock of the test's.

Its sites speak to it with the real client; their deltas are handed to the books, as the aggregator
does it.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from pww.central.audit import Audit, audit
from pww.central.coordinator import Coordinator
from pww.central.http import CoordinatorApp
from pww.central.ledger import FILE, Ledger
from pww.clock import ManualClock, SystemClock
from pww.config.schema import Darl, Transport
from pww.lease.space import BlockSpace
from pww.replica.coordinator_client import HttpCoordinator
from pww.transport.serve import AsgiServer
from pww.wire import (
    Acquire,
    Exhausted,
    Granted,
    Heartbeat,
    Lease,
    Leased,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    Register,
    Renewal,
    RoundReport,
    Verdict,
)

DARL = Darl(
    block_windows=4, seed=1, epochs=1, ttl_floor_s=30.0, heartbeat_s=3.0, detect_s=10.0,
    restore_grace_s=60.0, ahead=False, max_attempts=0,
)  # fmt: skip
TRANSPORT = Transport(
    kind="inline",
    url="none",
    down="whole",
    limit_mb=64,
    timeout_s=30.0,
    poll_s=0.1,
    retry_first_s=0.01,
    retry_max_s=0.05,
)
SPACE = BlockSpace(
    num_windows=78, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
)  # 20 blocks, the last of 2 windows
MODEL = "a" * 64


class Lossy:
    """Does what is asked, and hangs up before the reply is out, for the next `lose` requests."""

    def __init__(self, app: CoordinatorApp) -> None:
        self._app, self.lose, self.statuses = app, 0, list[int]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def note(event: Any) -> None:
            if event["type"] == "http.response.start":
                self.statuses.append(event["status"])
            if not lost:
                await send(event)

        lost = self.lose > 0
        self.lose -= lost
        await self._app(scope, receive, note)
        if lost:  # less than was announced: the client sees a broken connection
            await send(
                {"type": "http.response.start", "status": 200,
                 "headers": [(b"content-length", b"9")]}
            )  # fmt: skip
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Central:
    """A coordinator behind HTTP; `restart` is a new process on the same port."""

    def __init__(self, folder: Path, *, space: BlockSpace = SPACE, clock: Any = None) -> None:
        self.folder, self.space, self._random = folder, space, np.random.default_rng(0)
        self.clock = clock or ManualClock()
        self.port, self._lock = 0, threading.Lock()
        self._clients: list[HttpCoordinator] = []
        self.open()

    def open(self) -> None:
        self._ledger = Ledger(self.folder / FILE)
        self.books = Coordinator(
            self._ledger, self.space, darl=DARL, aggregator_port=0, clock=self.clock
        )
        if not self.books.generation:
            self.books.seed(generation="round-000000", state_hash="0" * 64)
        self._app = CoordinatorApp(self.books, clock=SystemClock())
        self.http = Lossy(self._app)
        self._server = AsgiServer(host="127.0.0.1", port=self.port, key="central.port")
        self.port = self._server.port
        self._server.start(self.http, name="coordinator")

    def kill(self) -> None:
        """What is not on the disk is gone."""
        self._server.stop()
        self._app.close()
        self._ledger.close()

    def restart(self, *, empty: bool = False) -> None:
        self.kill()
        if empty:
            for file in self.folder.glob("ledger.sqlite*"):
                file.unlink()
        self.open()

    def token(self) -> str:
        with self._lock:
            return str(self._random.bytes(16).hex())

    def client(self, clock: Any = None) -> HttpCoordinator:
        made = HttpCoordinator(
            f"http://127.0.0.1:{self.port}", TRANSPORT, clock=clock or SystemClock(),
            stop=threading.Event(), random=np.random.default_rng(0),
        )  # fmt: skip
        self._clients.append(made)
        return made

    def lapse(self) -> None:
        """Every lease that is not renewed expires."""
        self.clock.advance(31.0)
        self.books.tick()

    def merge(self, *deltas: str) -> None:
        """A round of those deltas."""
        number = self.books.round + 1
        offers = [one.offer for one in self.books.staged() if one.offer.delta in deltas]
        report = RoundReport(
            round=number, merged=tuple(offer.replica for offer in offers), rejected=(),
            tokens=sum(offer.tokens for offer in offers), loss=1.0, delta_norm=1.0,
            avg_delta_norm=1.0, agreement=1.0, drift_mean=0.0, drift_max=0.0, bytes_received=1,
            merge_seconds=0.1,
        )  # fmt: skip
        self.books.close_round(
            merged=[offer.delta for offer in offers], generation=f"round-{number:06d}",
            state_hash=f"{number:064x}", report=report,
        )  # fmt: skip

    def audited(self) -> Audit:
        self.books.verify()
        told = audit(self.folder)
        assert told.ok
        return told

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.kill()


class Site:
    """One process of one replica, over HTTP."""

    def __init__(self, central: Central, replica: str, **claims: Any) -> None:
        self.central, self.replica = central, replica
        self.incarnation, self.prev = central.token(), ""
        self.http = central.client()
        first = Register(
            replica=replica, incarnation=self.incarnation, node_key="", run="",
            space=central.space.info(), model=MODEL, last_round=0,
        )  # fmt: skip
        self.registered = self.http.register(first.model_copy(update=claims))

    def ask(self, blocks: int, *, key: str = "") -> Granted | Exhausted | Any:
        request = Acquire(
            replica=self.replica, incarnation=self.incarnation, key=key or self.central.token(),
            num_blocks=blocks, ttl_s=30.0,
        )  # fmt: skip
        return self.http.acquire(request).answer

    def acquire(self, blocks: int, *, key: str = "") -> Lease:
        answer = self.ask(blocks, key=key)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def renew(self, lease: Lease) -> bool:
        """Whether it is still his."""
        message = Heartbeat(
            replica=self.replica, incarnation=self.incarnation,
            leases=(Renewal(id=lease.id, ttl_s=30.0),),
        )  # fmt: skip
        return self.http.heartbeat(message).leases[0].valid

    def offer(self, lease: Lease) -> Offer:
        tokens = self.central.space.num_span_windows(lease.span) * 8
        base = self.central.books.round  # read once: others merge meanwhile
        return Offer(
            run=self.registered.run, replica=self.replica, incarnation=self.incarnation,
            base_hash=f"{base:064x}",
            delta=self.central.token(), prev=self.prev, base_round=base,
            spans=(Leased(lease=lease.id, span=lease.span),), tokens=tokens, partial=False,
            finite=True, payload=PayloadInfo(codec="fp32", size_bytes=1, digest="b" * 64),
            metrics=PhaseMetrics(
                steps=1, tokens=tokens, loss=1.0, phase_seconds=1.0, tokens_per_s=10.0
            ),
        )  # fmt: skip

    def complete(self, lease: Lease) -> Verdict | None:
        """Delivers the phase; None: it is staged, for the next merge."""
        offer = self.offer(lease)
        verdict = self.central.books.receive(offer)
        if verdict is None:
            self.prev = offer.delta
        return verdict
