"""A federation whose central is killed again and again, at points of a seeded generator's choice.

After every kill the ledger is audited as the dead process left it.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from conftest import Child, NursedProject
from federation import Federation, replay

from pww.central.audit import audit
from pww.central.replay import replay as merge_again

AIMS = ("start", "serving", "receiving", "merging")
"""What a kill waits for before its random delay."""
SITES = ("a", "b", "c")
OVERRIDES = (
    "diloco.inner_steps=8", "transport.retry_first_s=0.05", "transport.retry_max_s=0.3",
    "transport.poll_s=0.05", "data.max_windows=1200", "central.keep_deltas=true",
)  # fmt: skip


class Nursed(Federation):
    """A federation of a nursery's processes, for kills: it keeps what it takes to merge again."""

    def __init__(self, project: NursedProject, ports: tuple[int, int], *overrides: str) -> None:
        super().__init__(project, ports, *OVERRIDES, *overrides)

    @property
    def state(self) -> Path:
        return self.project.outputs / "central" / "central"

    def check(self) -> None:
        """Exactly once, by books and draws; theta as NumPy has it, and as the same merges without
        a kill make it, bit for bit."""
        self.check_exactly_once()
        replay(self)
        assert merge_again(self.state.parent, [], say=lambda _: None).ok

    def clear(self) -> None:
        """Removes the run, for the next one to have its names."""
        for run in ("central", *SITES):
            shutil.rmtree(self.project.outputs / run, ignore_errors=True)
            (self.project.folder / f"{run}.log").unlink(missing_ok=True)

    def central_again(self) -> Child:
        """The same central without the composition of its configuration: half the start."""
        return self.project.start("central", str(self.state.parent), name="central")


@dataclass
class Kills:
    """What became of a run under kills."""

    killed: int = 0
    hits: Counter[str] = field(default_factory=Counter)  # what the central was at
    start_s: list[float] = field(default_factory=list)  # from birth to serving


class Killer:
    """Kills one federation's central, and has it born again each time."""

    def __init__(self, federation: Nursed, seed: int, *, whole_starts: bool = False) -> None:
        """`whole_starts`: every start is a `python -m pww.central` from its command line on."""
        self._federation, self._whole = federation, whole_starts
        self._rng = np.random.default_rng(seed)
        self.told = Kills()

    def run(self, kills: int) -> Kills:
        """Kills so often at most; then the run goes to its end, all by themselves."""
        federation = self._federation
        central = federation.central()
        sites = [federation.site(name, STEP_S="0.01") for name in SITES]
        for _ in range(kills):
            if not self._aim(central):
                break
            self.told.hits[self._at(central)] += 1
            central.kill()
            self.told.killed += 1
            books = audit(federation.state) if self._any_books() else None
            assert books is None or (books.ok and not books.lost and not books.doubled), books
            frozen = (federation.state.parent / "config.yaml").exists() and not self._whole
            central = federation.central_again() if frozen else federation.central()
        for site in sites:
            site.until(lambda site=site: site.code is not None or central.code, 120)
            said = f"{site.said()[-2000:]}\n{central.said()[-2000:]}"
            assert site.code == 0, f"site: {site.code}, central: {central.code}\n{said}"
        code = central.wait(60)
        # killed after its last word, it finds nothing left to do
        assert code == 0 or "is complete" in central.said(), central.said()[-3000:]
        return self.told

    def _any_books(self) -> bool:
        """Whether there is a run in the ledger yet: the very first start may be killed as well."""
        ledger = self._federation.state / "ledger.sqlite"
        return bool(self.told.start_s) and ledger.exists()

    def _aim(self, central: Child) -> bool:
        """Returns at the moment of the kill; False: the run was over before."""
        aim = AIMS[self._rng.choice(len(AIMS), p=(0.2, 0.3, 0.2, 0.3))]
        if aim == "start":
            usual_s = float(np.median(self.told.start_s)) if self.told.start_s else 2.0
            self._sleep(usual_s)
            return central.code is None
        began_s = time.monotonic()
        self._until(lambda: " serves " in central.said() or central.code is not None, 60)
        if central.code is not None:
            return False
        self.told.start_s.append(time.monotonic() - began_s)
        match aim:
            case "serving":
                self._sleep(1.5)
            case "receiving":
                self._until(lambda: self._received() or central.code is not None, 10)
                self._sleep(0.1)
            case "merging":
                known = self._generations()
                self._until(lambda: self._generations() != known or central.code is not None, 10)
                self._sleep(0.05)
        return central.code is None

    def _at(self, central: Child) -> str:
        """What the central is about to do."""
        if " serves " not in central.said():
            return "starting"
        if any(name.endswith(".part") for name in self._generations()):
            return "merging"
        return "a delta is staged" if self._received() else "waiting"

    def _generations(self) -> set[str]:
        folder = self._federation.state / "generations"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def _received(self) -> bool:
        return any((self._federation.state / "deltas").glob("*"))

    def _sleep(self, at_most_s: float) -> None:
        time.sleep(float(self._rng.uniform(0, at_most_s)))

    def _until(self, ready: Callable[[], object], timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while not ready() and time.monotonic() < end_s:
            time.sleep(0.001)
