"""One seed: how large a run, what goes wrong and when, and the run itself."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulation import disk, flower, threads
from simulation.books import Books
from simulation.central import Central, small_snapshots
from simulation.kernel import World
from simulation.network import Network, Weather
from simulation.site import Site, seeded_ids
from simulation.trainer import TOKENS

from pww.config.load import compose
from pww.config.schema import Config
from pww.lease.space import BlockSpace

KINDS = (
    "lost_request", "lost_reply", "doubled", "delayed_request", "delayed_reply", "reordered",
    "partition", "crash_site", "crash_central", "crash_at_write_site", "crash_at_write_central",
    "freeze_site", "freeze_central", "wall_skew", "wall_jump", "leave", "folder_lost",
    "folder_rolled_back", "moved",
    "disk_full_site", "disk_full_central", "flower_db_lost", "slow_write",
    "batch",
)  # fmt: skip
SETTLE_S = 600.0


@dataclass(frozen=True)
class Outcome:
    """What came of a seed."""

    seed: int
    fault: str  # "" if every law held
    last: tuple[str, ...]
    digest: str
    faults: Counter[str]
    simulated_s: float
    events: int
    rounds: int
    draws: int
    audits: int
    seen: Counter[str]  # what happened to leases


@cache
def base_config() -> Config:
    """The project's own configuration."""
    return compose(("darl.block_windows=2",))


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Scenario:
    """A run with its faults."""

    def __init__(self, seed: int, root: Path, *, faults: bool = True) -> None:
        world = self.world = World(seed)
        rng, pick = world.rng, world.uniform
        large = world.chance(0.05)
        num_sites = int(rng.integers(1, 4))
        num_blocks = int(rng.integers(16, 33)) if large else int(rng.integers(5, 12))
        steps, block_windows = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        space = BlockSpace(
            num_windows=num_blocks * block_windows - int(rng.integers(0, block_windows)),
            block_windows=block_windows, seed=int(rng.integers(0, 1000)),
            epochs=2 if world.chance(0.1) else 1, window_tokens=TOKENS + 1, corpus="c" * 64,
        )  # fmt: skip
        plan = {"inner_steps": steps, "batch_windows": block_windows}
        base = base_config()
        darl = base.darl.model_copy(
            update={
                "block_windows": block_windows, "heartbeat_s": 3.0, "detect_s": 10.0,
                "ttl_floor_s": float(rng.integers(12, 40)),
                "restore_grace_s": float(rng.integers(5, 30)),
                "ahead": world.chance(0.8),
                "max_attempts": 3 if world.chance(0.1) else 0,
            }
        )  # fmt: skip
        diloco = base.diloco.model_copy(
            update={
                "inner_steps": steps, "staleness_window": int(rng.integers(0, 4)),
                "quorum": (0.1, 0.5, 1.0)[int(rng.integers(0, 3))],
                "grace": (0.0, 0.1, 1.0)[int(rng.integers(0, 3))],
            }
        )  # fmt: skip
        transport = base.transport.model_copy(
            update={"poll_s": 2.0, "timeout_s": 5.0, "retry_first_s": 0.5, "retry_max_s": 5.0}
        )
        config = base.model_copy(update={"darl": darl, "diloco": diloco, "transport": transport})
        self.weather = Weather(latency_s=pick(0.005, 0.2))
        if faults and world.chance(0.8):
            self.weather = Weather(
                latency_s=pick(0.005, 0.2), lose=pick(0.0, 0.2), double=pick(0.0, 0.15),
                delay=pick(0.0, 0.15), delay_s=(2.0, 10.0, 40.0)[int(rng.integers(0, 3))],
            )  # fmt: skip
        self.network = Network(world, self.weather)
        self.central = Central(world, folder=root / "central", space=space, config=config)
        self.books = Books(
            world, folder=root / "central", space=space, config=config, batch=block_windows
        )
        self.central.books = self.books
        self.sites = [
            Site(
                world, self.network, self.central, self.books, index=i, folder=root / f"site{i}",
                plan=plan, space=space, config=config, step_s=pick(0.3, 4.0),
            )
            for i in range(num_sites)
        ]  # fmt: skip
        world.faults["wall_skew"] += 1 + num_sites
        self.calm_s = pick(10.0, 90.0) if faults else 0.0
        self.every_s = pick(1.0, 8.0)
        self.limit_s = self.calm_s + SETTLE_S + 20.0 * space.num_positions
        self.finished_s = -1.0

    # ------------------------------------------------------------------------------- the run

    def run(self) -> None:
        """To the end, or to the first broken law."""
        world = self.world
        world.at(self.world.uniform(0.0, 5.0), self.central.start)
        for site in self.sites:
            late_s = world.uniform(0.0, 5.0) if world.chance(0.7) else world.uniform(5.0, 40.0)
            world.at(late_s, site.start)
        if self.calm_s:
            world.at(world.uniform(0.0, self.every_s), self._strike)
            world.at(self.calm_s, self._calm)
        if not world.run(until=self._over, limit_s=self.limit_s):
            waiting = [f"{s.replica} (life {s.machine.life})" for s in self.sites if not s.done]
            world.fail(
                f"not finished after {self.limit_s:.0f} s: round {self.books.round}, central "
                f"{'finished' if self.central.finished else 'serves'}, unfinished {waiting}"
            )
            raise world.fault or AssertionError
        self.books.complete = True
        for site in self.sites:
            self.books.keep_draws(site.folder)
        self.books.close()
        if world.fault is not None:
            raise world.fault

    def _over(self) -> bool:
        if not self.central.finished:
            return False
        if self.finished_s < 0:
            self.finished_s = self.world.now
        return all(self._ended(site) for site in self.sites)

    def _ended(self, site: Site) -> bool:
        """Done, or absent when the run came to its end."""
        if site.replaced and site.machine.dead:
            return True
        if site.done or site.late or (site.machine.dead and site.machine.life == 0):
            return True
        if not site.machine.dead and not site.registered:
            return True  # it asks for a central that has nothing left to give
        # whom the faults kept away until the end cannot be told any more
        return self.finished_s < self.calm_s + 60.0 and self.world.now > self.finished_s + 90.0

    # ---------------------------------------------------------------------------- the faults

    def _calm(self) -> None:
        """From now on nothing goes wrong."""
        self.world.trace("calm")
        weather = self.weather
        weather.lose = weather.double = weather.delay = 0.0
        weather.latency_s = min(weather.latency_s, 0.1)
        self.network.cut.clear()
        for machine in (self.central.machine, *(site.machine for site in self.sites)):
            machine.fuse, machine.full_until_s, machine.frozen_until_s = 0, -1.0, 0.0

    def _strike(self) -> None:
        """Something goes wrong, and the next thing is on its way."""
        world = self.world
        if world.now >= self.calm_s:
            return
        world.at(float(world.rng.exponential(self.every_s)), self._strike)
        strikes: list[Callable[[], None]] = [
            self._crash_site, self._crash_site, self._fuse_site, self._fuse_site,
            self._fuse_central, self._fuse_central, self._crash_central, self._freeze_site,
            self._freeze_central, self._jump, self._leave, self._full_site, self._full_central,
            self._cut, self._save, self._move,
        ]  # fmt: skip
        strikes[int(world.rng.integers(0, len(strikes)))]()

    def _site(self) -> Site:
        return self.sites[int(self.world.rng.integers(0, len(self.sites)))]

    def _crash_site(self) -> None:
        site = self._site()
        if site.machine.dead:
            return
        self.world.inject("crash_site", site.machine.name)
        site.machine.crash()
        if self.world.chance(0.15):
            self.world.inject("folder_lost", site.machine.name)
            site.lose_folder()
        elif self.world.chance(0.5) and site.roll_back():
            self.world.inject("folder_rolled_back", site.machine.name)

    def _crash_central(self) -> None:
        if self.central.machine.dead:
            return
        self.world.inject("crash_central")
        self.central.machine.crash()
        if self.world.chance(0.1):
            self.world.inject("flower_db_lost")
            self.central.database.nodes.clear()

    def _fuse_site(self) -> None:
        machine = self._site().machine
        if not machine.dead:
            machine.fuse = int(self.world.rng.integers(1, 30))

    def _fuse_central(self) -> None:
        if not self.central.machine.dead:
            self.central.machine.fuse = int(self.world.rng.integers(1, 40))

    def _freeze(self, machine: Any, kind: str) -> None:
        if machine.dead:
            return
        self.world.inject(kind, machine.name)
        for_s = self.world.uniform(1.0, 12.0) if self.world.chance(0.5) else (
            self.world.uniform(12.0, 70.0))  # fmt: skip
        machine.frozen_until_s = self.world.now + for_s

    def _freeze_site(self) -> None:
        self._freeze(self._site().machine, "freeze_site")

    def _freeze_central(self) -> None:
        self._freeze(self.central.machine, "freeze_central")

    def _save(self) -> None:
        self._site().save()

    def _move(self) -> None:
        """The queue takes a site for dead that only stands still, and starts it elsewhere."""
        site = self._site()
        if site.machine.dead or site.replaced or site.done or site.machine.name.count("'"):
            return
        self.world.inject("moved", site.machine.name)
        site.machine.frozen_until_s = self.world.now + self.world.uniform(5.0, 60.0)
        self.sites.append(site.move())
        self.world.at(self.world.uniform(0.0, 20.0), self.sites[-1].start)

    def _jump(self) -> None:
        machines = [self.central.machine, *(site.machine for site in self.sites)]
        machine = machines[int(self.world.rng.integers(0, len(machines)))]
        self.world.inject("wall_jump", machine.name)
        machine.wall_offset_s += self.world.uniform(-3600.0, 3600.0)

    def _leave(self) -> None:
        site = self._site()
        if not site.machine.dead:
            self.world.inject("leave", site.machine.name)
            site.ranks.asked.set()

    def _full_site(self) -> None:
        self._site().machine.full_until_s = self.world.now + self.world.uniform(1.0, 15.0)

    def _full_central(self) -> None:
        self.central.machine.full_until_s = self.world.now + self.world.uniform(1.0, 10.0)

    def _cut(self) -> None:
        name = self._site().machine.name
        self.network.cut[name] = self.world.now + self.world.uniform(1.0, 60.0)


def run_seed(
    seed: int,
    *,
    trace: Callable[[str], None] | None = None,
    faults: bool = True,
    strict: bool = True,
) -> Outcome:
    """Runs one seed from nothing and leaves nothing behind.

    Without `strict`, a block may be drawn by one who has lost it, as long as that is never merged.
    """
    root = Path(tempfile.mkdtemp(prefix="pww-sim-", dir=_memory()))
    fault = ""
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        scenario = Scenario(seed, root, faults=faults)
        scenario.books.strict_draws = strict
        world = scenario.world
        world.on_trace = trace
        stack.enter_context(threads.simulated(world))
        stack.enter_context(disk.simulated())
        stack.enter_context(flower.simulated())
        stack.enter_context(seeded_ids(world))
        stack.enter_context(small_snapshots())
        stack.enter_context(scenario.books.watching())
        try:
            scenario.run()
        except AssertionError as why:
            fault = str(why)
        finally:
            for machine in (scenario.central.machine, *(s.machine for s in scenario.sites)):
                machine.on_death.clear()
                machine.crash()
    return Outcome(
        seed=seed, fault=fault, last=tuple(world.last), digest=world.digest, faults=world.faults,
        simulated_s=world.now, events=world.num_events, rounds=scenario.books.round,
        draws=scenario.books.num_draws, audits=scenario.books.num_audits,
        seen=scenario.books.seen,
    )  # fmt: skip
