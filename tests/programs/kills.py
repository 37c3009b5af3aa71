"""A federation whose central is killed again and again, at points of a seeded generator's choice.

After every kill the ledger is audited as the dead process left it.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from conftest import CLOSED_FORM, Project
from federation import Federation, replay

from pww.central.audit import audit
from pww.central.replay import replay as merge_again

AIMS = ("start", "serving", "receiving", "merging")
"""What a kill waits for before its random delay."""
NURSERY = Path(__file__).with_name("nursery.py")
SITES = ("a", "b", "c")
OVERRIDES = (
    "diloco.inner_steps=8", "transport.retry_first_s=0.05", "transport.retry_max_s=0.3",
    "transport.poll_s=0.05", "data.max_windows=1200", "central.keep_deltas=true",
)  # fmt: skip


class Nursery:
    """One nursery process; `start` has the program forked there."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)], cwd=folder, env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.codes: dict[int, int] = {}
        self._born: queue.Queue[int] = queue.Queue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        assert self._ready.wait(120), "the nursery does not start"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "ready" in told:
                self._ready.set()
            elif "code" in told:
                self.codes[told["pid"]] = told["code"]
            else:
                self.codes.pop(told["pid"], None)  # of an earlier one: numbers come round again
                self._born.put(told["pid"])

    def start(self, *argv: str, log: Path, **env: str) -> "Sprout":
        """Starts `python ARGV`."""
        assert self._process.stdin is not None
        log.touch()
        since = log.stat().st_size
        self._process.stdin.write(json.dumps({"argv": argv, "log": str(log), "env": env}) + "\n")
        self._process.stdin.flush()
        return Sprout(self, self._born.get(timeout=30), log, since)

    def close(self) -> None:
        """Ends it with all that it bore."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._thread.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Sprout:
    """A process that the nursery bore; as `conftest.Child`, as far as tests need it."""

    nursery: Nursery
    pid: int
    log: Path
    since: int  # bytes that others had written to its log before

    @property
    def code(self) -> int | None:
        return self.nursery.codes.get(self.pid)

    def text(self) -> str:
        """What it said itself."""
        return self.log.read_bytes()[self.since :].decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait(30)

    def wait(self, timeout_s: float = 120) -> int:
        self.until(lambda: self.code is not None, timeout_s)
        assert self.code is not None
        return self.code

    def until(self, ready: Callable[[], object], timeout_s: float = 90) -> None:
        """Returns when `ready()` is true; fails when it ends or the time is up first."""
        end_s = time.monotonic() + timeout_s
        while not ready():
            if self.code is not None and not ready():
                raise AssertionError(f"ended with {self.code}:\n{self.text()[-3000:]}")
            if time.monotonic() > end_s:
                raise AssertionError(f"nothing after {timeout_s} s:\n{self.text()[-3000:]}")
            time.sleep(0.005)


class Nursed(Federation):
    """A federation whose processes come from a nursery."""

    def __init__(
        self, nursery: Nursery, project: Project, ports: tuple[int, int], *overrides: str
    ) -> None:
        super().__init__(project, ports, *OVERRIDES, *overrides)
        self.nursery = nursery

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

    def central(self, *overrides: str) -> Sprout:  # type: ignore[override]
        leases, flower = self.ports
        return self.nursery.start(
            "-m", "pww.central", *self.overrides, "run.name=central", f"central.port={leases}",
            f"central.aggregator_port={flower}", f"central.blob_port={flower}", *overrides,
            log=self.project.folder / "central.log",
        )  # fmt: skip

    def central_again(self) -> Sprout:
        """The same central without the composition of its configuration: half the start."""
        return self.nursery.start(
            "central", str(self.state.parent), log=self.project.folder / "central.log"
        )

    def site(self, replica: str, *overrides: str, name: str = "", **env: str) -> Sprout:  # type: ignore[override]
        return self.nursery.start(
            str(CLOSED_FORM), *self.overrides, f"replica={replica}", f"run.name={name or replica}",
            f"central.url=http://127.0.0.1:{self.ports[0]}", *overrides,
            log=self.project.folder / f"{name or replica}.log", **env,
        )  # fmt: skip


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
            said = f"{site.text()[-2000:]}\n{central.text()[-2000:]}"
            assert site.code == 0, f"site: {site.code}, central: {central.code}\n{said}"
        code = central.wait(60)
        # killed after its last word, it finds nothing left to do
        assert code == 0 or "is complete" in central.text(), central.text()[-3000:]
        return self.told

    def _any_books(self) -> bool:
        """Whether there is a run in the ledger yet: the very first start may be killed as well."""
        ledger = self._federation.state / "ledger.sqlite"
        return bool(self.told.start_s) and ledger.exists()

    def _aim(self, central: Sprout) -> bool:
        """Returns at the moment of the kill; False: the run was over before."""
        aim = AIMS[self._rng.choice(len(AIMS), p=(0.2, 0.3, 0.2, 0.3))]
        if aim == "start":
            usual_s = float(np.median(self.told.start_s)) if self.told.start_s else 2.0
            self._sleep(usual_s)
            return central.code is None
        began_s = time.monotonic()
        self._until(lambda: " serves " in central.text() or central.code is not None, 60)
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

    def _at(self, central: Sprout) -> str:
        """What the central is about to do."""
        if " serves " not in central.text():
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
