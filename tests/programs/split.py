"""A federation whose coordinator and aggregator are two processes, and a killer of either."""

import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from conftest import Child
from kills import Nursed

from pww.central.audit import audit

ROLES = ("coordinator", "aggregator")


class Split(Nursed):
    """Each role logs to a file of its name."""

    def role(self, role: str, *overrides: str) -> Child:
        """A process that serves one role, from its command line on."""
        leases, flower = self.ports
        return self.project.start(
            "-m", "pww.central", *self.overrides, "run.name=central", f"central.port={leases}",
            f"central.aggregator_port={flower}", f"central.roles=[{role}]", *overrides,
            name=role,
        )  # fmt: skip

    def role_again(self, role: str) -> Child:
        """The same without the composition of its configuration."""
        return self.project.start("central", str(self.state.parent), role, name=role)

    def clear(self) -> None:
        super().clear()
        for role in ROLES:
            (self.project.folder / f"{role}.log").unlink(missing_ok=True)


@dataclass
class SplitKills:
    """What became of a run under kills."""

    killed: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)


class SplitKiller:
    """Kills one of the two, or both at once, at random moments; has them born again each time."""

    def __init__(self, federation: Split, seed: int) -> None:
        self._federation, self._rng = federation, np.random.default_rng(seed)
        self.told = SplitKills()
        self._lives: dict[str, Child] = {}

    def run(self, kills: int, sites: tuple[str, ...]) -> SplitKills:
        """Kills so often at most; then the run goes to its end, all by themselves."""
        federation = self._federation
        self._lives = {role: federation.role(role) for role in ROLES}
        living = [federation.site(name, STEP_S="0.12") for name in sites]
        self._until_serving()
        for number in range(kills):
            # both in turn, so that neither is spared; every fifth time together
            victims = ROLES if number % 5 == 4 else (ROLES[number % 2],)
            if not self._aim(victims[0]):
                break
            self.told.hits[self._at()] += 1
            for victim in victims:
                self._lives[victim].kill()
                self.told.killed[victim] += 1
            books = audit(federation.state)
            assert (books.ok, books.lost, books.doubled) == (True, 0, 0), books
            time.sleep(float(self._rng.uniform(0, 0.3)))
            for victim in victims:
                self._lives[victim] = federation.role_again(victim)
        for site in living:
            site.until(lambda site=site: site.code is not None, 120)
            assert site.code == 0, f"{site.said()[-2000:]}\n{self._said()}"
        for role in reversed(ROLES):
            code = self._lives[role].wait(60)
            # killed after its last word, it finds nothing left to do
            assert code == 0 or "is complete" in self._lives[role].said(), self._said()
        return self.told

    def _said(self) -> str:
        return "\n".join(f"--- {role}\n{life.said()[-3000:]}" for role, life in self._lives.items())

    def _until_serving(self) -> None:
        for life in self._lives.values():
            life.until(lambda life=life: " serves " in life.said())

    def _aim(self, victim: str) -> bool:
        """Returns at the moment of the kill; False: the run was over before."""
        known, end_s = self._generations(), time.monotonic() + 10
        aim = self._rng.choice(("start", "any", "receiving", "merging"), p=(0.2, 0.3, 0.25, 0.25))

        def over() -> bool:
            return any(life.code is not None for life in self._lives.values())

        def ready() -> bool:
            match aim:
                case "receiving":
                    return any((self._federation.state / "deltas").glob("*"))
                case "merging":
                    return self._generations() != known
                case _:
                    return True

        if aim != "start":
            life = self._lives[victim]
            while " serves " not in life.said() and not over() and time.monotonic() < end_s:
                time.sleep(0.005)
        while not ready() and not over() and time.monotonic() < end_s:
            time.sleep(0.001)
        pause_s = {"start": 1.5, "any": 1.0, "receiving": 0.1, "merging": 0.05}[str(aim)]
        time.sleep(float(self._rng.uniform(0, pause_s)))
        return not over()

    def _at(self) -> str:
        if any(" serves " not in life.said() for life in self._lives.values()):
            return "one is starting"
        if any(name.endswith(".part") for name in self._generations()):
            return "merging"
        staged = any((self._federation.state / "deltas").glob("*"))
        return "a delta is staged" if staged else "waiting"

    def _generations(self) -> set[str]:
        folder = self._federation.state / "generations"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()
