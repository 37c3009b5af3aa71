"""The central: real books, merge and server loop in one process, started again when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulation.blobs import Store
from simulation.flower import Database, Link
from simulation.kernel import Machine, SimClock, World
from simulation.threads import Event, SimpleQueue, Thread

from pww.central import state as pww_state
from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.inbox import CentralInbox
from pww.central.ledger import FILE, Ledger
from pww.codec import codec_named
from pww.errors import PwwError
from pww.federation.rounds import Rounds
from pww.transport import update as pww_update
from pww.transport.retry import TryAgain

LINGER_S = 120.0
"""A site may be in a request that takes half a minute to fail when the last block comes in."""


class WatchedInbox(CentralInbox):
    """Tells of every turn, so that no round goes unseen."""

    books: Any

    def tick(self) -> None:
        super().tick()
        self.books.look()


class Desk:
    """What `pww.central.batcher` does: calls that come while the disk is busy share a commit."""

    def __init__(self, world: World, coordinator: Coordinator) -> None:
        self._world, self._coordinator = world, coordinator
        self._queue = SimpleQueue()
        Thread(target=self._run, name="group-commit").start()

    def answer(self, call: Any) -> Any:
        """The reply to one call; raises a refusal or the disk's."""
        told, ready = [], Event()
        self._queue.put((call, told, ready))
        ready.wait()
        if isinstance(told[0], PwwError):
            raise told[0]
        return told[0]

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self._world.faults["batch"] += len(batch) > 1
            replies: list[Any]
            try:
                replies = self._coordinator.answer([call for call, _, _ in batch])
            except PwwError as why:
                replies = [why] * len(batch)
            for (call, told, ready), reply in zip(batch, replies, strict=True):
                if " failed (" in str(reply):  # a bug that the books hide from the others
                    self._world.fail(f"{call}: {reply}")
                told.append(reply)
                ready.set()


@contextmanager
def small_snapshots() -> Iterator[None]:
    """In the block the books are written out after a few events, not after thousands."""
    real = pww_state.SNAPSHOT_EVENTS
    pww_state.SNAPSHOT_EVENTS = 24
    try:
        yield
    finally:
        pww_state.SNAPSHOT_EVENTS = real


@contextmanager
def small_updates() -> Iterator[None]:
    """In the block updates are worth their bytes, although theta has five values."""
    real = pww_update.WORTH
    pww_update.WORTH = 6.0
    try:
        yield
    finally:
        pww_update.WORTH = real


class Central:
    """The central across its processes; `folder` outlives them."""

    def __init__(self, world: World, *, folder: Path, space: Any, config: Any) -> None:
        self.world, self.folder, self.space, self.config = world, folder, space, config
        self.machine = Machine(
            world, "central", monotonic_s=world.uniform(0, 1e6),
            skew_s=world.uniform(-300.0, 300.0),
        )  # fmt: skip
        self.clock = SimClock(self.machine)
        self.database = Database()
        self.books: Any = None
        self._desk: Desk | None = None
        self._link: Link | None = None
        self._store: Store | None = None
        self.finished = False
        self.ends: list[str] = []

    @property
    def desk(self) -> Desk:
        """Who answers in the living process; between its start and its port's there is nobody."""
        if self._desk is None:
            raise TryAgain("connection refused")
        return self._desk

    @property
    def link(self) -> Link:
        """Flower of the living process."""
        if self._link is None:
            raise TryAgain("connection refused")
        return self._link

    @property
    def store(self) -> Store:
        """The blob store of the living process."""
        if self._store is None:
            raise TryAgain("connection refused")
        return self._store

    def start(self) -> None:
        """Somebody starts it."""
        self.machine.boot()
        self.world.trace(f"central starts, life {self.machine.life}")
        self.machine.on_death.append(self._died)
        self.machine.start(self._process, "process")

    def _died(self) -> None:
        self._desk = self._link = self._store = None
        self.books.up = False
        if not self.finished:
            self.world.at(self.world.uniform(0.2, 12.0), self.start)

    def _process(self) -> None:
        try:
            self._work()
            end = "finished"
        except (PwwError, OSError) as why:
            self.machine.check()
            end = f"{type(why).__name__}: {why}"
            if "No space left" not in end and "database or disk is full" not in end:
                self.world.fail(f"the central ended: {end}", why)
        self.machine.check()
        told = end.replace(str(self.folder.parent), "")
        self.world.trace(f"central ends: {told}")
        self.ends.append(end)
        self.finished = end == "finished"
        self.machine.dead = True
        self.world.at(0.0, self.machine.crash)

    def _work(self) -> None:
        """What `pww.central` does once its arguments are read."""
        config = self.config
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.machine.life > 1:
            self.books.audit()
        link = Link(self.world, self.machine, self.database)
        ledger = Ledger(self.folder / FILE)
        coordinator = Coordinator(
            ledger, self.space, darl=config.darl, aggregator_port=1, clock=self.clock,
            members=link, staleness_window=config.diloco.staleness_window, limit_mb=1,
            new_run=self.world.token,
        )  # fmt: skip
        carried = config.transport.kind == "blob"
        store = Store(self.folder / "blobs") if carried else None
        named = config.transport.down
        down = None if named == "whole" else codec_named(named)
        aggregator = Aggregator(
            coordinator, folder=self.folder, diloco=config.diloco, clock=self.clock, down=down,
            shelf=store, inline_bytes=0 if carried else 1_000_000,
        )  # fmt: skip
        metrics: Any = SimpleNamespace(row=lambda *_, **__: None)
        inbox = WatchedInbox(
            coordinator,
            aggregator,
            metrics,
            clock=self.clock,
            linger_s=LINGER_S,
            address="http://central",
            carried=store,
        )
        inbox.books = self.books
        self._desk = Desk(self.world, coordinator)
        self._link, link.serves, self._store = link, True, store
        self.books.opened(coordinator, aggregator, life=self.machine.life)
        rounds = Rounds(
            link, inbox, folder=self.folder / "incoming", clock=self.clock, limit_mb=1,
            seed_ttl_s=20.0,
        )  # fmt: skip
        rounds.run(Event())
        self._desk = self._link = self._store = None
        ledger.close()
