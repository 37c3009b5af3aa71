"""The aggregator's role: merge, Flower and global metrics over books, to the end of the run.

The books are in this process, or in that of the coordinator on this machine, which is waited for
whenever it is away.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pww.central.aggregator import Aggregator
from pww.central.blob_http import BlobApp
from pww.central.blobs import BlobStore
from pww.central.books import Books
from pww.central.books_socket import path_in
from pww.central.carried import Blobs
from pww.central.door import Door, Identity
from pww.central.ending import complete, coverage_line, refuse_complete
from pww.central.exporting import export_final
from pww.central.inbox import NOTED_BYTES, CentralInbox
from pww.central.ledger import FILE
from pww.central.listening import Listening, listen
from pww.central.member_follower import MemberFollower
from pww.central.objects import Objects
from pww.central.remote_books import RemoteBooks
from pww.central.same_settings import require_same
from pww.clock import Clock
from pww.codec import codec_named
from pww.config import paths
from pww.config.schema import Config
from pww.errors import Stopped
from pww.federation.records import MB
from pww.federation.rounds import Rounds
from pww.federation.superlink import EmbeddedSuperLink
from pww.log import read_json_lines
from pww.metrics import Metrics
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.transport.fsspec_place import place_of

log = logging.getLogger(__name__)
REPLICA_SHARE = 4
"""One replica's unfinished uploads take at most this part of the quota from all others."""


@dataclass(frozen=True, slots=True)
class Merger:
    """All that merges one run; `serve` is its life."""

    config: Config
    folder: Path
    books: Books
    aggregator: Aggregator
    rounds: Rounds
    metrics: Metrics
    blobs: BlobStore | None  # None: nothing travels by it

    def blob_app(self, stack: ExitStack, *, door: "Door | NewestDoor | None") -> BlobApp | None:
        """What serves the blob store, if there is one; `stack` closes it."""
        if self.blobs is None:
            return None
        app = BlobApp(self.blobs, clock=self.aggregator.clock, door=door)
        stack.callback(app.close)
        return app

    def serve(self, stop: threading.Event) -> str:
        """Serves sites to the end of the run; returns what to tell a person.

        Raises:
            Stopped: `stop` was set before the end.
            PwwError: the disk refused, or the state folder is gone.
        """
        books, folder = self.books, self.folder
        self.rounds.run(stop)
        if stop.is_set():
            raise Stopped(f"stopped at round {books.round}; start it again with the same command")
        theta = self.aggregator.publish_final(folder)
        exported = export_final(self.config, folder, self.aggregator.published.current)
        return (
            f"run {self.config.run.name} is complete: {books.round} merges, "
            f"{coverage_line(books.status())}\n"
            f"  theta    {paths.shown(theta)} (state hash {books.state_hash})\n"
            f"  {exported}\n"
            f"  metrics  {paths.shown(folder / 'metrics.jsonl')}\n"
            f"  check    python -m pww.central audit {paths.shown(folder)}" + self._never_sent()
        )

    def _never_sent(self) -> str:
        """A row and a line for each replica whose last delta's residual stays behind."""
        lines, books = "", self.books
        for one in books.unsent():
            self.metrics.row(
                "residual", step=books.round, round=books.round,
                tokens=books.tokens_total(books.round), loss=one.loss, why="end",
                replica=one.replica, delta=one.delta, norm=one.norm, of_delta=one.of_delta,
            )  # fmt: skip
            lines += f"\n  never sent, as encoding lost it at {one}"
        return lines


def open_merger(
    config: Config,
    folder: Path,
    books: Books,
    link: EmbeddedSuperLink,
    stack: ExitStack,
    *,
    clock: Clock,
    stop: threading.Event,
    ports: Listening,
) -> Merger:
    """Goes on where the books stand; `stack` closes what it opens.

    Raises:
        StateError: the run is complete, or its theta is damaged.
    """
    state, central = folder / "central", config.central
    store, ways = _ways(config, books, state, stack, ports=ports, clock=clock, stop=stop)
    down = config.transport.down
    aggregator = Aggregator(
        books, folder=state, diloco=config.diloco, clock=clock, keep_deltas=central.keep_deltas,
        down=None if down == "whole" else codec_named(down), shelf=ways,
        inline_bytes=config.transport.inline_mb * MB,
    )  # fmt: skip
    metrics = _metrics(config, folder)
    stack.callback(metrics.close)
    incoming = state / "incoming"
    incoming.mkdir(exist_ok=True)
    inbox = CentralInbox(
        books, aggregator, metrics, clock=clock, address=ports.url, linger_s=central.linger_s,
        noted=read_json_lines(folder / "metrics.jsonl", last_bytes=NOTED_BYTES),
        folders=(incoming, state / FILE), carried=ways,
    )  # fmt: skip
    if inbox.finished():
        theta = aggregator.publish_final(folder)
        raise complete(config.run.name, round_=books.round, status=books.status(), theta=theta)
    rounds = Rounds(
        link, inbox, folder=incoming, clock=clock, limit_mb=config.transport.limit_mb,
        seed_ttl_s=central.patience_s,
    )  # fmt: skip
    return Merger(config, folder, books, aggregator, rounds, metrics, store)


def _ways(
    config: Config,
    books: Books,
    state: Path,
    stack: ExitStack,
    *,
    ports: Listening,
    clock: Clock,
    stop: threading.Event,
) -> tuple[BlobStore | None, Blobs | Objects | None]:
    """Where payloads are that do not fit into messages: the store that we serve, and its use."""
    if ports.blobs is not None:
        quota_bytes = int(config.central.blob_quota_gb * 1e9)
        store = BlobStore(
            state / "blobs", quota_bytes=quota_bytes, replica_bytes=quota_bytes // REPLICA_SHARE,
            clock=clock,
        )  # fmt: skip
        stack.callback(store.close)
        return store, Blobs(store)
    if config.transport.url == "none":
        return None, None
    carrier = FsspecCarrier(
        place_of(config.transport.url, books.run), clock=clock, stop=stop,
        random=np.random.default_rng(),
    )  # fmt: skip
    stack.callback(carrier.close)
    objects = Objects(carrier, state / "objects", clock=clock, stop=stop)
    stack.callback(objects.close)
    return None, objects


def open_link(
    config: Config, state: Path, stack: ExitStack, *, guard: "Door | NewestDoor | None"
) -> EmbeddedSuperLink:
    """Flower's SuperLink in the state folder; `stack` closes it."""
    link = EmbeddedSuperLink(state, limit_mb=config.transport.limit_mb, guard=guard)
    stack.callback(link.close)
    return link


def serve_aggregator(config: Config, folder: Path, stop: threading.Event, *, clock: Clock) -> str:
    """Merges for the coordinator of this run folder until the run is complete.

    Raises:
        StateError: the port is taken, the run is complete, or the coordinator is another run's.
        ConfigError: the coordinator has other settings.
        Stopped: `stop` was set before the end.
    """
    with ExitStack() as stack:
        ports = listen(config, stack)
        state, keys, name = folder / "central", ports.keys, config.run.name
        guard = None
        if keys is not None:
            guard = NewestDoor(lambda: Door.of(keys, state=state, clock=clock))

        def met() -> None:
            require_same(config, folder)
            if guard is not None:
                guard.renew()

        books = RemoteBooks(
            path_in(state), name=paths.shown(folder), clock=clock, stop=stop, met=met,
            random=np.random.default_rng(), absent=lambda: refuse_complete(folder, name),
        )  # fmt: skip
        stack.callback(books.close)
        books.attach()
        link = open_link(config, state, stack, guard=guard)
        members = MemberFollower(books, link, clock=clock)
        stack.callback(members.close)
        members.start()
        merger = open_merger(
            config, folder, books, link, stack, clock=clock, stop=stop, ports=ports
        )
        blob_app = merger.blob_app(stack, door=guard)
        stack.callback(ports.stop)
        stack.enter_context(link.run())
        ports.serve(fleet=link.app, blobs=blob_app)
        log.info(
            "run %s serves :%d (Flower) for the coordinator on this machine: round %d",
            name, ports.fleet_port, books.round,
        )  # fmt: skip
        return merger.serve(stop)


class NewestDoor:
    """A door over the secret that the coordinator of the moment mints its tokens under."""

    def __init__(self, make: Callable[[], Door]) -> None:
        self._make = make
        self._door: Door | None = None

    def renew(self) -> None:
        """A coordinator was started: its secret may be a new one."""
        self._door = self._make()

    def keys(self) -> Mapping[str, str]:
        """As `Door.keys`."""
        return self._now().keys()

    def check_node(self, authorization: str, path: str, pem: str, *, peer: str) -> Identity:
        """As `Door.check_node`."""
        return self._now().check_node(authorization, path, pem, peer=peer)

    def check(self, authorization: str, path: str, *, peer: str = "") -> Identity:
        """As `Door.check`."""
        return self._now().check(authorization, path, peer=peer)

    def _now(self) -> Door:
        assert self._door is not None, "nobody is let in before a coordinator was met"
        return self._door


def _metrics(config: Config, folder: Path) -> Metrics:
    wandb = config.metrics.wandb
    return Metrics(
        folder, project=wandb.project, group=config.run.name, name=f"{config.run.name}-central",
        wandb_id=paths.wandb_id(folder), mode=wandb.mode, config=config.model_dump(mode="json"),
    )  # fmt: skip
