"""The central: real books, merge and server loop in one process, started again when it ends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulation.flower import Database, Link
from simulation.kernel import Machine, SimClock, World
from simulation.threads import Event

from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.inbox import CentralInbox
from pww.central.ledger import FILE, Ledger
from pww.errors import PwwError
from pww.federation.rounds import Rounds
from pww.transport.retry import TryAgain


class WatchedInbox(CentralInbox):
    """Tells of every turn, so that no round goes unseen."""

    books: Any

    def tick(self) -> None:
        super().tick()
        self.books.look()


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
        self._coordinator: Coordinator | None = None
        self._link: Link | None = None
        self.finished = False
        self.ends: list[str] = []

    @property
    def coordinator(self) -> Coordinator:
        """The books of the living process; between its start and its port's there are none."""
        if self._coordinator is None:
            raise TryAgain("connection refused")
        return self._coordinator

    @property
    def link(self) -> Link:
        """Flower of the living process."""
        if self._link is None:
            raise TryAgain("connection refused")
        return self._link

    def start(self) -> None:
        """Somebody starts it."""
        self.machine.boot()
        self.world.trace(f"central starts, life {self.machine.life}")
        self.machine.on_death.append(self._died)
        self.machine.start(self._process, "process")

    def _died(self) -> None:
        self._coordinator = self._link = None
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
        self.world.trace(f"central ends: {end}")
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
        aggregator = Aggregator(
            coordinator, folder=self.folder, diloco=config.diloco, clock=self.clock
        )
        metrics: Any = SimpleNamespace(row=lambda *_, **__: None)
        inbox = WatchedInbox(
            coordinator, aggregator, metrics, clock=self.clock, address="http://central"
        )
        inbox.books = self.books
        self._coordinator = coordinator
        self._link, link.serves = link, True
        self.books.opened(coordinator, aggregator)
        rounds = Rounds(
            link, inbox, folder=self.folder / "incoming", clock=self.clock, limit_mb=1,
            seed_ttl_s=20.0,
        )  # fmt: skip
        rounds.run(Event())
        self._coordinator = self._link = None
        ledger.close()
