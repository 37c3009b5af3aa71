"""What goes wrong in a run: its own few kinds of faults, until it is calm."""

from collections.abc import Callable

from simulation.central import Central
from simulation.kernel import Machine, World
from simulation.network import Network
from simulation.site import Site

KINDS = (
    "lost_request", "lost_reply", "doubled", "delayed_request", "delayed_reply", "reordered",
    "partition", "crash_site", "crash_central", "crash_at_write_site", "crash_at_write_central",
    "freeze_site", "freeze_central", "wall_skew", "wall_jump", "leave", "folder_lost",
    "folder_rolled_back", "moved",
    "disk_full_site", "disk_full_central", "flower_db_lost", "slow_write",
    "batch",
)  # fmt: skip


class Faults:
    """Strikes at random moments; `sites` grows when one moves."""

    def __init__(
        self, world: World, network: Network, central: Central, sites: list[Site], *,
        every_s: float, calm_s: float, silence: bool,
    ) -> None:  # fmt: skip
        self._world, self._network, self._central, self._sites = world, network, central, sites
        self._every_s, self._calm_s = every_s, calm_s
        self._strikes = [self._cut, self._freeze_site] if silence else self._some_strikes()
        self._longest_s = 45.0 if silence else 60.0
        self._shortest_s = 10.0 if silence else 1.0

    def begin(self) -> None:
        """From now on things go wrong, for a while."""
        for machine in self._machines():
            machine.on_rename = self._at_rename(machine)
        self._world.at(self._world.uniform(0.0, self._every_s), self._strike)
        self._world.at(self._calm_s, self._calm)

    def _machines(self) -> list[Machine]:
        return [self._central.machine, *(site.machine for site in self._sites)]

    def _calm(self) -> None:
        """From now on nothing goes wrong."""
        self._world.trace("calm")
        weather = self._network.weather
        weather.lose = weather.double = weather.delay = 0.0
        weather.latency_s = min(weather.latency_s, 0.1)
        self._network.cut.clear()
        for machine in self._machines():
            machine.fuse, machine.full_until_s, machine.frozen_until_s = 0, -1.0, 0.0

    def _strike(self) -> None:
        """Something goes wrong, and the next thing is on its way."""
        world = self._world
        if world.now >= self._calm_s:
            return
        world.at(float(world.rng.exponential(self._every_s)), self._strike)
        strikes = self._strikes
        strikes[int(world.rng.integers(0, len(strikes)))]()

    def _some_strikes(self) -> list[Callable[[], None]]:
        """A seed has some kinds of faults only, and so more of each."""
        every: list[Callable[[], None]] = [
            self._crash_site, self._fuse_site, self._fuse_central, self._crash_central,
            self._freeze_site, self._freeze_central, self._jump, self._leave, self._full_site,
            self._full_central, self._cut, self._save, self._move,
        ]  # fmt: skip
        return [one for one in every if self._world.chance(0.5)] or every

    def _at_rename(self, machine: Machine) -> Callable[[], None]:
        """A death, or a full disk, in the writes around the moment when something gets its name."""

        def renamed() -> None:
            if self._world.now >= self._calm_s or machine.fuse:
                return
            if self._world.chance(0.15):
                machine.fuse = int(self._world.rng.integers(1, 14))
            elif self._world.chance(0.03):
                machine.full_until_s = self._world.now + self._world.uniform(0.0, 1.0)

        return renamed

    def _site(self) -> Site:
        return self._sites[int(self._world.rng.integers(0, len(self._sites)))]

    def _crash_site(self) -> None:
        site = self._site()
        if site.machine.dead:
            return
        self._world.inject("crash_site", site.machine.name)
        site.machine.crash()
        if self._world.chance(0.15):
            self._world.inject("folder_lost", site.machine.name)
            site.lose_folder()
        elif self._world.chance(0.5) and site.roll_back():
            self._world.inject("folder_rolled_back", site.machine.name)

    def _crash_central(self) -> None:
        if self._central.machine.dead:
            return
        self._world.inject("crash_central")
        self._central.machine.crash()
        if self._world.chance(0.1):
            self._world.inject("flower_db_lost")
            self._central.database.nodes.clear()

    def _fuse_site(self) -> None:
        machine = self._site().machine
        if not machine.dead:
            machine.fuse = int(self._world.rng.integers(1, 30))

    def _fuse_central(self) -> None:
        if not self._central.machine.dead:
            self._central.machine.fuse = int(self._world.rng.integers(1, 40))

    def _freeze(self, machine: Machine, kind: str) -> None:
        if machine.dead:
            return
        self._world.inject(kind, machine.name)
        for_s = self._world.uniform(1.0, 12.0) if self._world.chance(0.5) else (
            self._world.uniform(12.0, 70.0))  # fmt: skip
        machine.frozen_until_s = self._world.now + for_s

    def _freeze_site(self) -> None:
        self._freeze(self._site().machine, "freeze_site")

    def _freeze_central(self) -> None:
        self._freeze(self._central.machine, "freeze_central")

    def _save(self) -> None:
        self._site().save()

    def _move(self) -> None:
        """The queue takes a site for dead that only stands still, and starts it elsewhere."""
        site = self._site()
        if site.machine.dead or site.replaced or site.done or site.machine.name.count("'"):
            return
        self._world.inject("moved", site.machine.name)
        site.machine.frozen_until_s = self._world.now + self._world.uniform(5.0, 60.0)
        self._sites.append(site.move())
        self._sites[-1].machine.on_rename = self._at_rename(self._sites[-1].machine)
        self._world.at(self._world.uniform(0.0, 20.0), self._sites[-1].start)

    def _jump(self) -> None:
        machines = self._machines()
        machine = machines[int(self._world.rng.integers(0, len(machines)))]
        self._world.inject("wall_jump", machine.name)
        machine.wall_offset_s += self._world.uniform(-3600.0, 3600.0)

    def _leave(self) -> None:
        site = self._site()
        if not site.machine.dead:
            self._world.inject("leave", site.machine.name)
            site.ranks.asked.set()

    def _full_site(self) -> None:
        self._site().machine.full_until_s = self._world.now + self._world.uniform(1.0, 15.0)

    def _full_central(self) -> None:
        self._central.machine.full_until_s = self._world.now + self._world.uniform(1.0, 10.0)

    def _cut(self) -> None:
        name = self._site().machine.name
        self._network.cut[name] = self._world.now + self._world.uniform(
            self._shortest_s, self._longest_s
        )
