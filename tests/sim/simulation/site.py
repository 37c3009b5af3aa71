"""One site: the real session, exchange, outbox and loop, started again when its process ends."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulation.blobs import Carrier
from simulation.flower import Fleet, public_pem
from simulation.kernel import Machine, SimClock, World
from simulation.network import Network, Port
from simulation.threads import Event
from simulation.trainer import SHAPES, Plan, Trainer

from pww.codec import codec_named
from pww.connect import Start
from pww.errors import PwwError, Refused, Stopped
from pww.folder import write_durably
from pww.replica import loop
from pww.replica import outbox as pww_outbox
from pww.replica.durable import Durable
from pww.replica.federated import FederatedExchange
from pww.replica.outbox import Entry, Outbox
from pww.replica.session import Session
from pww.trainer.ranks import nothing
from pww.transport.exchange import Theta
from pww.transport.payload import write_theta
from pww.wire import Gauges, Lease, Verdict, model_digest

MODEL = model_digest(SHAPES)


class Ranks:
    """`pww.trainer.ranks.Ranks` of a process that is the only one, without process groups."""

    rank, world = 0, 1
    group = None

    def __init__(self) -> None:
        self.asked = Event()

    def agreed(self) -> bool:
        return self.asked.is_set()

    def share(self, work: Callable[[], Any], *, meanwhile: Callable[[], None] = nothing) -> Any:
        meanwhile()
        return work()

    local = share

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def agree_on_fault(self, fault: PwwError | None) -> None:
        if fault is not None:
            raise fault

    def most(self, mine: int) -> int:
        return mine

    def beside(self) -> "Ranks":
        return self


class Quiet:
    """`pww.replica.report.Report` that says nothing."""

    def evaluate(self, *_: Any) -> None:
        return None

    def is_due(self, *_: Any) -> bool:
        return True

    def steps(self, *_: Any, **__: Any) -> Callable[..., None]:
        return lambda **_: None

    @contextmanager
    def exchanging(self, *_: Any) -> Any:
        yield

    saving = exchanging
    meters = SimpleNamespace(read=lambda *_: Gauges())

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class WatchedOutbox(Outbox):
    """Tells which verdicts reached the replica, and what its phases began from."""

    site: "Site"

    def put(self, trainer: Any, theta: Theta, result: Any, lease: Lease, **more: Any) -> Entry:
        self.site.books.puts(lease, theta.round, self.merged, trainer.began)
        entry = super().put(trainer, theta, result, lease, **more)
        trainer.here = entry.offer.delta
        return entry

    def _publish(self, part: Path, entry: Entry, drawn: Any) -> None:
        super()._publish(part, entry, drawn)
        self.site.encoded(entry)

    def settle(self, verdict: Verdict) -> None:
        self.site.books.told(verdict)
        super().settle(verdict)


class Site:
    """A replica across its processes."""

    def __init__(
        self, world: World, network: Network, central: Any, books: Any, *, index: int, folder: Path,
        plan: dict[str, int], space: Any, config: Any, step_s: float, moved: int = 0,
    ) -> None:  # fmt: skip
        self.world, self.network, self.central, self.books = world, network, central, books
        self.index, self.folder, self.space, self.config = index, folder, space, config
        self.replica = f"site{index}/a"
        self._plan, self._step_s, self._moved = plan, step_s, moved
        self.machine = Machine(
            world, f"site/{index}" + "'" * moved, monotonic_s=world.uniform(0, 1e6),
            skew_s=world.uniform(-300.0, 300.0),
        )  # fmt: skip
        self.clock = SimClock(self.machine)
        self._copy = folder.with_name(f"{folder.name}-copy")
        self.done = self.late = False
        self.replaced = False  # another machine runs this replica now
        self.registered = False
        self.incarnation = ""
        self.ranks = Ranks()
        self.ends: list[str] = []

    # ---------------------------------------------------------------------------- life cycle

    def start(self) -> None:
        """The queue lets a process start."""
        self.machine.boot()
        self.ranks = Ranks()
        self.registered = False
        self.world.trace(f"{self.machine.name} starts, life {self.machine.life}")
        self.machine.on_death.append(self._died)
        self.machine.start(self._process, "process")

    def _died(self) -> None:
        if not self.done:
            short = self.world.chance(0.75)
            queued_s = self.world.uniform(0.5, 12.0) if short else self.world.uniform(12.0, 50.0)
            self.world.at(queued_s, self._requeue)

    def _requeue(self) -> None:
        if self.replaced:
            return
        if self.central.finished:
            self.late = True  # nobody is there any more
        else:
            self.start()

    def lose_folder(self) -> None:
        """Another machine, or a purged scratch: the next process starts from nothing."""
        self.books.keep_draws(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def save(self) -> None:
        """Somebody copies the folder as it is."""
        if self.folder.exists():
            shutil.rmtree(self._copy, ignore_errors=True)
            shutil.copytree(self.folder, self._copy)

    def roll_back(self) -> bool:
        """The folder comes back from that copy; False if there is none."""
        if not self._copy.exists():
            return False
        self.lose_folder()
        self._copy.rename(self.folder)
        return True

    def move(self) -> "Site":
        """The same replica on another machine, which has nothing of this one's."""
        self.replaced = True
        return Site(
            self.world, self.network, self.central, self.books, index=self.index,
            folder=self.folder.with_name(f"{self.folder.name}-moved"), plan=self._plan,
            space=self.space, config=self.config, step_s=self._step_s, moved=self._moved + 1,
        )  # fmt: skip

    def _process(self) -> None:
        try:
            self._work()
            end = "finished"
        except Stopped:
            end = "stopped"
        except PwwError as why:
            end = f"{type(why).__name__}: {why}"
            if isinstance(why, Refused) and why.code in ("wrong_run", "wrong_space", "wrong_model"):
                self.world.fail(f"{self.replica} was refused: {why}")
        except OSError as why:
            end = f"OSError: {why}"
        self.machine.check()
        told = end.replace(str(self.folder.parent), "")  # where the run is changes nothing
        self.world.trace(f"{self.machine.name} ends: {told}")
        self.ends.append(end)
        self.done = end == "finished"
        # the process is over: its other threads are daemons
        self.machine.dead = True
        self.world.at(0.0, self.machine.crash)

    def _work(self) -> None:
        """What `pww.worker` and `pww.connect` do, over simulated ends."""
        config, world = self.config, self.world
        self.folder.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(self, batch=self._plan["batch_windows"], step_s=self._step_s,
                          seed=self.index)  # fmt: skip
        plan = Plan(self.space, trainer=trainer, **self._plan)
        codec = config.codec
        outbox = WatchedOutbox(
            self.folder, ranks=self.ranks, codec=codec_named(codec.name), keep=2,
            feedback=codec.feedback,
        )  # fmt: skip
        outbox.site = self
        if outbox.pending is not None:
            self.encoded(outbox.pending)
        seed = self.folder / "theta0.safetensors"
        if outbox.last is not None:
            trainer.load_inner(outbox.last.inner)
        else:
            write_theta(seed, trainer.tensors(), SHAPES)
        start = Start(self.space, MODEL, seed, outbox.last)
        network, to = self.network, self.central.machine
        transport = config.transport
        port = Port(
            network, to, lambda: self.central.desk, clock=self.clock, stop=self.ranks.asked,
            timeout_s=transport.timeout_s, deadline_s=30.0, first_s=transport.retry_first_s,
            max_s=transport.retry_max_s, granted=self.books.granted,
        )  # fmt: skip
        session = Session(
            port, replica=self.replica, node_key=public_pem(self.index), space=self.space,
            model=MODEL, darl=config.darl, clock=self.clock, stop=self.ranks.asked, versions={},
            claims=start.claims, new_token=world.token,
        )  # fmt: skip
        self.incarnation = session.incarnation
        self.books.presented[session.incarnation] = start.claims.deltas
        exchange = None
        try:
            session.register()
            self.registered = True
            fleet = Fleet(
                network, to, lambda: self.central.link, transport, clock=self.clock,
                stop=self.ranks.asked, key=self.index, heartbeat_s=30.0,
                who=(self.replica, session.incarnation),
            )  # fmt: skip
            exchange = FederatedExchange(
                fleet, run=session.run, replica=self.replica, incarnation=session.incarnation,
                model=MODEL, seed=seed, folder=self.folder / "theta", limit_mb=transport.limit_mb,
                carrier=self._carrier(), poll_s=transport.poll_s, clock=self.clock,
                stop=self.ranks.asked,
                reregister=session.reregister, check=session.check,
            )  # fmt: skip
            report = Quiet()
            hand = Durable(
                session, exchange, outbox, report, plan=plan, ranks=self.ranks,
                clock=self.clock, overlap=config.diloco.overlap,
            )  # fmt: skip
            loop.run(hand, trainer, report, plan=plan)
            self.books.finished(self.replica)
            write_durably(self.folder / "finished", b"finished\n")
        finally:
            pending = outbox.pending
            session.leave(() if pending is None else tuple(s.lease for s in pending.offer.spans))
            outbox.close()
            if exchange is not None:
                exchange.close()
                counts = exchange.counts
                self.books.seen["theta came whole"] += counts["theta_whole"]
                self.books.seen["theta came by update"] += counts["theta_updates"]
                if counts["theta_repairs"]:
                    self.world.fail(f"{self.replica} has other bits than the central after updates")
            outbox.close()

    def _carrier(self) -> Carrier | None:
        transport = self.config.transport
        if transport.kind != "blob":
            return None
        return Carrier(
            self.network, self.central.machine, lambda: self.central.store, clock=self.clock,
            stop=self.ranks.asked, timeout_s=transport.timeout_s,
        )  # fmt: skip

    # ------------------------------------------------------------------- what it really did

    def encoded(self, entry: Entry) -> None:
        """A delta is durable here."""
        self.books.sums.encoded(entry, replica=self.replica, life=self.machine.life)

    def draws(self, lease: Lease, offset: int, windows: list[int]) -> None:
        """The data loader fetches windows of a lease, from the `offset`-th on."""
        self.books.drew(self, lease, offset, windows)

    def trains_from(self, number: int, state_hash: str) -> None:
        """A phase starts from theta of a round."""
        self.books.trained_from(self.replica, number, state_hash)


@contextmanager
def seeded_ids(world: World) -> Iterator[None]:
    """In the block, delta ids come from the world's chance."""
    real = pww_outbox.uuid4
    pww_outbox.uuid4 = lambda: SimpleNamespace(hex=world.token())
    try:
        yield
    finally:
        pww_outbox.uuid4 = real
