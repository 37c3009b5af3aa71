"""One seed: how large a run, what goes wrong and when, and the run itself."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulation import disk, flower, threads
from simulation.books import Books
from simulation.central import Central, small_snapshots, small_updates
from simulation.faults import KINDS as KINDS
from simulation.faults import Faults
from simulation.kernel import World
from simulation.network import Network, Weather
from simulation.site import Site, seeded_ids
from simulation.trainer import TOKENS

from pww.config.load import compose
from pww.config.schema import Config
from pww.config.schema.codec import ExactCodec, LossyCodec, TopKCodec
from pww.lease.space import BlockSpace

SETTLE_S = 600.0
DOWN = ("fp32", "int8", "int4")
UP = (
    ExactCodec(kind="fp32"), ExactCodec(kind="fp32"), LossyCodec(kind="int8", feedback=True),
    LossyCodec(kind="int4", feedback=True),
    TopKCodec(kind="topk", keep=1024, value_bits=8, feedback=True, force=False),
)  # fmt: skip
"""Codecs of the seeds, which take turns; of four values topk sends one."""


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
        num_blocks = int(rng.integers(12, 25)) if large else int(rng.integers(4, 10))
        steps, block_windows = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        slow = world.chance(0.3)  # phases that outlast a lease which nobody renews
        if slow:
            steps, num_sites = int(rng.integers(3, 8)), max(2, num_sites)
        silence = slow and world.chance(0.5)  # and a network that is quiet for as long
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
                "ttl_floor_s": 12.0 if silence else float(rng.integers(12, 40)),
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
                "overlap": seed % 3 == 1,  # no chance: the other seeds stay what they are
            }
        )  # fmt: skip
        transport = base.transport.model_copy(
            update={
                "poll_s": 2.0, "timeout_s": 5.0, "retry_first_s": 0.5, "retry_max_s": 5.0,
                # no chance either
                "kind": "blob" if seed % 4 >= 2 else "inline",
                "down": DOWN[seed // 2 % len(DOWN)] if seed % 2 else "whole",
            }
        )  # fmt: skip
        config = base.model_copy(
            update={
                "darl": darl, "diloco": diloco, "transport": transport,
                "codec": UP[seed % len(UP)],
            }
        )  # fmt: skip
        self.weather = Weather(latency_s=pick(0.005, 0.2))
        if faults and world.chance(0.8):
            self.weather = Weather(
                latency_s=pick(0.005, 0.2), lose=pick(0.0, 0.2) * world.chance(0.7),
                double=pick(0.0, 0.2) * world.chance(0.7),
                delay=pick(0.0, 0.2) * world.chance(0.7),
                delay_s=(2.0, 10.0, 40.0)[int(rng.integers(0, 3))],
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
                plan=plan, space=space, config=config,
                step_s=pick(3.0, 8.0) if slow else pick(0.3, 4.0),
            )
            for i in range(num_sites)
        ]  # fmt: skip
        world.faults["wall_skew"] += 1 + num_sites
        self.calm_s = pick(8.0, 60.0) if faults else 0.0
        self.faults = Faults(
            world, self.network, self.central, self.sites, every_s=pick(1.0, 6.0),
            calm_s=self.calm_s, silence=silence,
        )  # fmt: skip
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
            self.faults.begin()
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
        stack.enter_context(small_updates())
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
        seen=scenario.books.seen + world.deaths,
    )  # fmt: skip
