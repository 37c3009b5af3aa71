"""Simulated time and threads: greenlets that wait, one heap of events, machines that crash.

Everything runs in one real thread. A greenlet runs until it waits; then the next event in simulated
time goes on. A machine's greenlets die together: each is unwound by `Crash`, and while that goes on
whatever it tries (disk, network, waiting, locks) raises `Crash` again, so that no handler of the
code under test does what a killed process could not do.
"""

import hashlib
import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import greenlet
import numpy as np

WALL_S = 1.7e9
TINY_S = 1e-6


class Crash(BaseException):
    """The process is dead, at this instruction."""


class SimulationFault(AssertionError):
    """A law is broken; the text says which."""


class Machine:
    """One process at a time, with clocks of its own; what it wrote outlives it."""

    def __init__(self, world: "World", name: str, *, monotonic_s: float, skew_s: float) -> None:
        self.world, self.name, self.kind = world, name, name.partition("/")[0]
        self.dead = True
        self.life = 0  # processes so far
        self.frozen_until_s = 0.0
        self.monotonic_s, self.wall_offset_s = monotonic_s, skew_s
        self.greenlets: dict[Any, None] = {}
        self.open: list[Any] = []  # files and connections that a death closes
        self.fuse = 0  # disk operations until it dies; 0: none is lit
        self.full_until_s = -1.0  # the disk is full until then
        self.on_death: list[Callable[[], None]] = []
        self.on_rename: Callable[[], object] = lambda: (
            None
        )  # something becomes whole: a good moment

    def start(self, target: Callable[[], object], label: str) -> Any:
        """Runs `target` in a greenlet of the living process, at once after what happens now."""
        made = greenlet.greenlet(self._main, parent=self.world.hub)
        made.machine = self
        self.greenlets[made] = None
        self.world.at(0.0, lambda: made.switch(target, label), machine=self)
        return made

    def _main(self, target: Callable[[], object], label: str) -> None:
        me = greenlet.getcurrent()
        try:
            if self.dead:
                return
            target()
        except Crash:
            pass
        except BaseException as why:
            if not self.dead:  # else: a handler's own trouble on the way down
                self.world.fail(f"{self.name}: {label} ended with {type(why).__name__}: {why}", why)
        finally:
            self.greenlets.pop(me, None)

    def boot(self) -> None:
        """A new process may start."""
        assert self.dead, "one process at a time"
        self.dead, self.life, self.fuse = False, self.life + 1, 0

    def crash(self) -> None:
        """Ends the process now; call it from an event. The disk keeps what was written."""
        self.dead = True
        self.fuse = 0
        for one in list(self.greenlets):
            if not one.dead and one:
                one.throw(Crash())
        self.greenlets.clear()
        for one in self.open:
            one.close()
        self.open.clear()
        hooks, self.on_death = self.on_death, []
        for hook in hooks:
            hook()

    def check(self) -> None:
        """Passes while the process lives."""
        if self.dead:
            raise Crash


class World:
    """Simulated time, the only source of chance, and the trace."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self._numbers: list[float] = []
        self.now = 0.0
        self.hub = greenlet.getcurrent()
        self.faults: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()  # by what was about to be written
        self.last: deque[str] = deque(maxlen=100)
        self.on_trace: Callable[[str], None] | None = None
        self._hash = hashlib.sha256()
        self._heap: list[tuple[float, int, Callable[[], object], Machine | None, int]] = []
        self._count = 0
        self.num_events = 0
        self.fault: SimulationFault | None = None

    def chance(self, probability: float) -> bool:
        """True with that probability; no number is drawn for 0."""
        return probability > 0.0 and self._number() < probability

    def uniform(self, low: float, high: float) -> float:
        """A number from [low, high)."""
        return low + (high - low) * self._number()

    def _number(self) -> float:
        """From [0, 1); many are drawn at once, one by one they take most of a run's time."""
        if not self._numbers:
            self._numbers = self.rng.random(512).tolist()
        return self._numbers.pop()

    def token(self) -> str:
        """128 bits in hex."""
        return self.rng.bytes(16).hex()

    def trace(self, text: str) -> None:
        """Notes something that happened: part of the hash that a replay must reproduce."""
        line = f"{self.now:.6f} {text}"
        self._hash.update(line.encode())
        self.last.append(line)
        if self.on_trace is not None:
            self.on_trace(line)

    def inject(self, kind: str, text: str = "") -> None:
        """Counts a fault."""
        self.faults[kind] += 1
        self.trace(f"fault {kind} {text}")

    @property
    def digest(self) -> str:
        """Hash of the trace so far."""
        return self._hash.hexdigest()

    def fail(self, text: str, why: BaseException | None = None) -> None:
        """Notes the first broken law; the run ends with it."""
        if self.fault is None:
            self.fault = SimulationFault(f"seed {self.seed}, {self.now:.3f} s: {text}")
            self.fault.__cause__ = why
            self.trace(f"FAILED {text}")

    def at(
        self, delay_s: float, what: Callable[[], object], *, machine: Machine | None = None
    ) -> None:
        """`what` happens after `delay_s`; on a machine: in its present process or not at all."""
        self._count += 1
        life = 0 if machine is None else machine.life
        heapq.heappush(self._heap, (self.now + max(0.0, delay_s), self._count, what, machine, life))

    def run(self, *, until: Callable[[], bool], limit_s: float) -> bool:
        """Lets time pass until `until()`; False if `limit_s` came first."""
        while not until():
            if self.fault is not None:
                raise self.fault
            if not self._heap:
                self.fail("nothing will ever happen again")
                continue
            due_s, number, what, machine, life = heapq.heappop(self._heap)
            if machine is not None:
                if machine.dead or machine.life != life:
                    continue
                if machine.frozen_until_s > max(due_s, self.now):
                    entry = (machine.frozen_until_s, number, what, machine, life)
                    heapq.heappush(self._heap, entry)
                    continue
            if due_s > limit_s:
                return False
            self.now = max(self.now, due_s)
            self.num_events += 1
            what()
        if self.fault is not None:
            raise self.fault
        return True

    def sleep(self, seconds: float) -> None:
        """The running greenlet goes on after `seconds`."""
        me = greenlet.getcurrent()
        self.at(max(seconds, TINY_S), me.switch, machine=me.machine)
        self.park()

    def park(self) -> Any:
        """The running greenlet waits until somebody switches to it."""
        me = greenlet.getcurrent()
        me.machine.check()
        value = self.hub.switch()
        me.machine.check()
        return value

    def wake(self, sleeper: Any, value: object = None) -> None:
        """Lets a parked greenlet go on, as the next event of its machine."""
        self.at(0.0, lambda: sleeper.switch(value), machine=sleeper.machine)


def running() -> Machine | None:
    """The machine whose greenlet runs; None for the simulation itself."""
    return getattr(greenlet.getcurrent(), "machine", None)


class SimClock:
    """`pww.clock.Clock` of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def monotonic(self) -> float:
        """Seconds since this machine's own start."""
        return self._machine.monotonic_s + self._machine.world.now

    def wall(self) -> float:
        """A date that is wrong by the machine's skew and its jumps."""
        return WALL_S + self._machine.wall_offset_s + self._machine.world.now

    def wait(self, event: Any, timeout_s: float) -> bool:
        """True as soon as `event` is set, False after `timeout_s`."""
        return bool(event.wait(timeout_s))
