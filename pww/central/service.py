"""One run served: books, merge, ports and Flower put together, until the run is complete.

Two ports, or one where `central.aggregator_port` is `central.port`: calls below `/v1/fleet/` are
Flower's, everything else is the coordinator's.
"""

import json
import logging
import resource
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.credentials import server_tls
from pww.central.door import Door
from pww.central.http import CoordinatorApp
from pww.central.inbox import NOTED_BYTES, CentralInbox
from pww.central.ledger import FILE, Ledger
from pww.clock import Clock
from pww.config import paths
from pww.config.schema import Config
from pww.data import prepare
from pww.data.manifest import Manifest, read_manifest
from pww.errors import StateError, Stopped
from pww.federation.rounds import Rounds
from pww.federation.superlink import EmbeddedSuperLink
from pww.folder import write_durably
from pww.lease.space import BlockSpace
from pww.log import read_json_lines
from pww.metrics import Metrics
from pww.transport.serve import AsgiServer

log = logging.getLogger(__name__)
FLEET = "/v1/fleet/"
MAX_FILES = 1 << 20
ADDRESS = "central.json"
"""In the state folder: where this central answers and where its keys are, for `pww.status`."""


def serve(config: Config, folder: Path, stop: threading.Event, *, clock: Clock) -> str:
    """Serves the run in `folder` to its end and returns what to tell a person.

    Raises:
        StateError: a port is taken, the folder belongs to other data, or the run is complete.
        Stopped: `stop` was set before the end.
    """
    _allow_connections()
    with ExitStack() as stack:
        central = config.central
        keys = None if central.security.keys == "none" else paths.PROJECT / central.security.keys
        tls = None if keys is None else server_tls(keys)
        port = AsgiServer(host=central.host, port=central.port, key="central.port", tls=tls)
        stack.callback(port.stop)
        fleet = port
        if central.aggregator_port != central.port:
            fleet = AsgiServer(
                host=central.host, port=central.aggregator_port, key="central.aggregator_port",
                tls=tls,
            )  # fmt: skip
            stack.callback(fleet.stop)
        url = _url(central.host, port.port, secure=tls is not None)

        space = BlockSpace.of(_manifest(config), config.darl)
        state = folder / "central"
        state.mkdir(parents=True, exist_ok=True)
        door = None if keys is None else Door.of(keys, state=state, clock=clock)
        link = EmbeddedSuperLink(state, limit_mb=config.transport.limit_mb, guard=door)
        stack.callback(link.close)
        ledger = Ledger(state / FILE)
        stack.callback(ledger.close)
        books = Coordinator(
            ledger, space, darl=config.darl, aggregator_port=fleet.port, clock=clock,
            members=link, staleness_window=config.diloco.staleness_window,
            limit_mb=config.transport.limit_mb, balanced=config.diloco.phase == "balanced",
        )  # fmt: skip
        paths.freeze(config, folder)
        merger = Aggregator(
            books, folder=state, diloco=config.diloco, clock=clock,
            keep_deltas=central.keep_deltas,
        )  # fmt: skip
        metrics = _metrics(config, folder)
        stack.callback(metrics.close)
        incoming = state / "incoming"
        incoming.mkdir(exist_ok=True)
        inbox = CentralInbox(
            books, merger, metrics, clock=clock, address=url, linger_s=central.linger_s,
            noted=read_json_lines(folder / "metrics.jsonl", last_bytes=NOTED_BYTES),
            folders=(incoming, ledger.path),
        )  # fmt: skip
        if inbox.finished():
            raise StateError(
                f"run {config.run.name} is complete: {books.round} merges, "
                f"{_coverage(books)}, theta in {paths.shown(merger.publish_final(folder))}. "
                "Start a new one with run.name=…"
            )
        rounds = Rounds(
            link, inbox, folder=incoming, clock=clock, limit_mb=config.transport.limit_mb,
            seed_ttl_s=central.patience_s,
        )  # fmt: skip
        app = CoordinatorApp(books, door)
        stack.callback(app.close)
        stack.callback(fleet.stop)
        stack.callback(port.stop)  # nothing comes in when what answers is taken down
        stack.enter_context(link.run())
        if fleet is port:
            port.start(OnePort(app, link.app), name="central")
        else:
            port.start(app, name="coordinator")
            fleet.start(link.app, name="aggregator")
        told = {"url": url, "keys": "none" if keys is None else str(keys)}
        write_durably(state / ADDRESS, json.dumps(told).encode())
        log.info(
            "run %s serves %s (leases) and :%d (Flower): %d blocks, round %d",
            config.run.name, url, fleet.port, space.num_positions, books.round,
        )  # fmt: skip
        rounds.run(stop)
        if stop.is_set():
            raise Stopped(f"stopped at round {books.round}; start it again with the same command")
        theta = merger.publish_final(folder)
        return (
            f"run {config.run.name} is complete: {books.round} merges, {_coverage(books)}\n"
            f"  theta    {paths.shown(theta)} (state hash {books.state_hash})\n"
            f"  metrics  {paths.shown(folder / 'metrics.jsonl')}\n"
            f"  check    python -m pww.central audit {paths.shown(folder)}"
            + _never_sent(books, metrics)
        )


def _never_sent(books: Coordinator, metrics: Metrics) -> str:
    """A row and a line for each replica whose last delta's residual stays behind."""
    lines = ""
    for one in books.unsent():
        metrics.row(
            "residual", step=books.round, round=books.round, tokens=books.tokens_total(books.round),
            loss=one.loss, why="end", replica=one.replica, delta=one.delta, norm=one.norm,
            of_delta=one.of_delta,
        )  # fmt: skip
        lines += f"\n  never sent, as encoding lost it at {one}"
    return lines


class OnePort:
    """Two ASGI apps on one port, by path."""

    def __init__(self, coordinator: Any, fleet: Any) -> None:
        self._coordinator, self._fleet = coordinator, fleet

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Hands the request on."""
        theirs = scope["type"] == "http" and scope["path"].startswith(FLEET)
        await (self._fleet if theirs else self._coordinator)(scope, receive, send)


def _allow_connections() -> None:
    """Many open connections must not keep the central from opening its files: as many as we may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _manifest(config: Config) -> Manifest:
    """What the central knows of the corpus; it never opens a shard."""
    if config.central.manifest != "none":
        return read_manifest(paths.PROJECT / config.central.manifest)
    corpus = prepare(
        config.data,
        seq_len=config.model.seq_len,
        vocab_multiple=config.model.vocab_multiple,
        project=paths.PROJECT,
    )
    return corpus.manifest


def _metrics(config: Config, folder: Path) -> Metrics:
    wandb = config.metrics.wandb
    return Metrics(
        folder, project=wandb.project, group=config.run.name, name=f"{config.run.name}-central",
        wandb_id=paths.wandb_id(folder), mode=wandb.mode, config=config.model_dump(mode="json"),
    )  # fmt: skip


def _url(host: str, port: int, *, secure: bool) -> str:
    """Where a process on this machine reaches the central."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{reachable}]" if ":" in reachable else reachable
    return f"{'https' if secure else 'http'}://{shown}:{port}"


def _coverage(books: Coordinator) -> str:
    """What of the corpus is in, and what was set aside."""
    status = books.status()
    blocks, aside = status["coverage"], status["quarantined_blocks"]
    text = f"{blocks['committed']} of {blocks['blocks']} blocks committed"
    if blocks["quarantined"]:
        named = ", ".join(map(str, aside))
        text += f", {blocks['quarantined']} set aside after too many attempts (blocks {named})"
    return text
