"""The coordinator's role: the books opened, and served alone where the aggregator is elsewhere.

Alone it needs neither torch nor Flower. It owns ledger and memory, expires leases, and answers the
aggregator's process on the socket of the books. Without one it serves leases, status and metrics;
a first site may join, more wait.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pww.central.books_server import BooksServer
from pww.central.books_socket import path_in
from pww.central.coordinator import Coordinator
from pww.central.door import Door
from pww.central.ending import PUBLISHED, End, complete, coverage_line
from pww.central.http import CoordinatorApp
from pww.central.ledger import FILE, Ledger
from pww.central.listening import Listening, listen
from pww.central.member_feed import MemberFeed
from pww.central.membership import Members
from pww.central.same_settings import tell_changes
from pww.clock import Clock
from pww.config import paths
from pww.config.same_model import architecture
from pww.config.schema import Config
from pww.data import prepare
from pww.data.manifest import Manifest, read_manifest
from pww.errors import StateError, Stopped
from pww.folder import write_durably
from pww.lease.space import BlockSpace
from pww.wire import Carriage

log = logging.getLogger(__name__)
ADDRESS = "central.json"
"""In the state folder: where this central answers and where its keys are, for `pww.status`."""
TICK_S = 0.2
SPEAK_S = 30.0


@dataclass(frozen=True, slots=True)
class Desk:
    """The books of a run, open, and the data that they are about."""

    books: Coordinator
    ledger: Ledger
    space: BlockSpace


def open_books(
    config: Config,
    state: Path,
    stack: ExitStack,
    *,
    clock: Clock,
    ports: Listening,
    members: Members,
    merges: Callable[[], bool] = lambda: True,
) -> Desk:
    """Opens the ledger in the state folder; `stack` closes it.

    Raises:
        StateError: the folder belongs to other data, or is damaged.
    """
    space = BlockSpace.of(manifest_of(config), config.darl)
    ledger = Ledger(state / FILE)
    stack.callback(ledger.close)
    books = Coordinator(
        ledger, space, darl=config.darl, aggregator_port=ports.fleet_port, clock=clock,
        members=members, carriage=carriage(config, blob_port=ports.blob_port),
        staleness_window=config.diloco.staleness_window, limit_mb=config.transport.limit_mb,
        balanced=config.diloco.phase == "balanced", merges=merges,
        architecture=architecture(config.model),
    )  # fmt: skip
    return Desk(books, ledger, space)


def carriage(config: Config, *, blob_port: int) -> Carriage:
    """How payloads travel in this run; what the central was configured to holds for every site."""
    transport, codec = config.transport, config.codec
    return Carriage(
        codec=codec.name, feedback=codec.feedback, inline_mb=transport.inline_mb,
        blob_port=blob_port, url="" if transport.url == "none" else transport.url,
    )  # fmt: skip


def manifest_of(config: Config) -> Manifest:
    """What the central knows of the corpus; it never opens a shard."""
    if config.central.manifest != "none":
        return read_manifest(paths.PROJECT / config.central.manifest)
    corpus = prepare(
        config.text,
        seq_len=config.model.seq_len,
        vocab_multiple=config.model.vocab_multiple,
        project=paths.PROJECT,
    )
    return corpus.manifest


def write_address(state: Path, ports: Listening) -> None:
    """Leaves word in the state folder of where this central answers."""
    told = {"url": ports.url, "keys": "none" if ports.keys is None else str(ports.keys)}
    write_durably(state / ADDRESS, json.dumps(told).encode())


def serve_coordinator(config: Config, folder: Path, stop: threading.Event, *, clock: Clock) -> str:
    """Serves leases and books until the run is complete; returns what to tell a person.

    Raises:
        StateError: a port is taken, the folder belongs to other data, or the run is complete.
        Stopped: `stop` was set before the end.
    """
    with ExitStack() as stack:
        ports = listen(config, stack)
        state = folder / "central"
        state.mkdir(parents=True, exist_ok=True)
        door = None if ports.keys is None else Door.of(ports.keys, state=state, clock=clock)
        feed = MemberFeed()
        desk = open_books(
            config, state, stack, clock=clock, ports=ports, members=feed,
            merges=lambda: feed.attached,
        )  # fmt: skip
        books, name = desk.books, config.run.name
        theta = (folder / PUBLISHED).with_name("theta.safetensors")
        end = End(books, folder, linger_s=config.central.linger_s, clock=clock)
        if end.reached(attached=False):
            raise complete(name, round_=books.round, status=books.status(), theta=theta)
        tell_changes(config, folder)
        paths.freeze(config, folder)  # the aggregator compares its own with it
        server = BooksServer(books, feed, path=path_in(state), clock=clock)
        stack.callback(server.close)
        app = CoordinatorApp(books, door, clock=clock)
        stack.callback(app.close)
        stack.callback(ports.stop)  # nothing comes in when what answers is taken down
        server.start()
        ports.serve(leases=AdmittedFirst(app, feed))
        write_address(state, ports)
        log.info(
            "run %s serves %s (leases), alone: %d blocks, round %d; the aggregator is another "
            "process of this machine with central.roles=[aggregator]",
            name, ports.url, desk.space.num_positions, books.round,
        )  # fmt: skip
        serve_books(desk, feed, end, stop, clock=clock)
        if stop.is_set():
            raise Stopped(f"stopped at round {books.round}; start it again with the same command")
        return (
            f"run {name} is complete: {books.round} merges, {coverage_line(books.status())}\n"
            f"  theta    {paths.shown(theta)} (state hash {books.state_hash})\n"
            f"  check    python -m pww.central audit {paths.shown(folder)}"
        )


def serve_books(
    desk: Desk, feed: MemberFeed, end: End, stop: threading.Event, *, clock: Clock
) -> None:
    """Time passes, until the end or a stop.

    Raises:
        StateError: the ledger is gone, or the disk refused.
    """
    spoke_s = clock.monotonic()
    while not stop.is_set():
        if not desk.ledger.path.exists():
            raise StateError(
                f"{desk.ledger.path} is gone while the central runs: what it hears can be kept no "
                "more. Put the state folder back from a copy and start the central again, or start "
                "a new run with run.name=…"
            )
        desk.books.tick()
        if end.reached(attached=feed.attached):
            return
        now_s = clock.monotonic()
        if feed.attached or not desk.books.live():
            spoke_s = now_s
        elif now_s - spoke_s >= SPEAK_S:
            spoke_s = now_s
            log.info(
                "no aggregator is attached, so nothing is merged: start it on this machine with "
                "central.roles=[aggregator]; sites wait for it"
            )
        clock.wait(stop, TICK_S)


class AdmittedFirst:
    """Answers a registration when the aggregator has admitted the node's key, or soon anyway.

    A site that came to the aggregator before its key would be turned away and come back later.
    """

    def __init__(self, app: CoordinatorApp, feed: MemberFeed) -> None:
        self._app, self._feed = app, feed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands the request on; keeps back the beginning of a good answer."""

        async def held(event: Any) -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:
                await asyncio.get_running_loop().run_in_executor(None, self._feed.settle)
            await send(event)

        joins = scope["type"] == "http" and scope["path"] == "/v1/register"
        await self._app(scope, receive, held if joins else send)
