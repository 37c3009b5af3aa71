"""The processes of one simulation: started by a forkserver that has the imports, killed, asked."""

import multiprocessing
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from pww.central.coverage import BATCHES
from pww.config import paths
from pww.config.schema import Config
from pww.log import read_json_lines
from pww.simulate.plan import Plan

CENTRAL = "central"


def as_central(folder: Path) -> None:
    """Target of the central's process; torch is imported there only."""
    from pww.simulate import processes

    processes.central(folder)


def as_site(folder: Path, windows_per_s: float) -> None:
    """Target of a replica's process."""
    from pww.simulate import processes

    processes.site(folder, windows_per_s)


class Family:
    """The processes of one simulation, each with a folder in `root`."""

    def __init__(self, plan: Plan, root: Path, config: Config) -> None:
        self.plan, self.root, self._config = plan, root, config
        self.started: dict[str, ForkServerProcess] = {}
        self._killed: set[str] = set()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pww.simulate.processes"])

    def start(self, name: str) -> None:
        """Starts the central, or the replica of that name."""
        folder = self.root / name
        folder.mkdir(parents=True)
        config = self._config
        if name != CENTRAL:
            config = config.model_copy(update={"replica": name})
        paths.freeze(config, folder)
        if name == CENTRAL:
            process = self._context.Process(target=as_central, args=(folder,))
        else:
            speed = self.plan.speeds[self.plan.names.index(name)]
            process = self._context.Process(target=as_site, args=(folder, speed))
        process.start()
        self.started[name] = process

    def kill(self, name: str) -> None:
        """SIGKILL: no handler runs, nothing is said goodbye to."""
        self._killed.add(name)
        self.started[name].kill()
        self.started[name].join()

    def was_killed(self, name: str) -> bool:
        """Whether we did that."""
        return name in self._killed

    def codes(self) -> dict[str, int | None]:
        """Exit codes, None for those that run."""
        return {name: process.exitcode for name, process in self.started.items()}

    def end(self) -> None:
        """Nothing of it is left."""
        for process in self.started.values():
            process.kill()
            process.join()

    def inside_a_phase(self, name: str) -> str:
        """Where in the middle of a phase the replica is ("batch 10 of 40"); "" elsewhere."""
        rows = read_json_lines(self.root / name / BATCHES, last_bytes=4096)
        if not rows:
            return ""
        done, of = int(str(rows[-1]["done"])), int(str(rows[-1]["of"]))
        return f"batch {done} of {of}" if 0 < done <= of // 2 else ""

    def tails(self, names: Sequence[str]) -> str:
        """The last lines of those processes."""
        lines = []
        for name in names:
            log = self.root / name / "log"
            text = log.read_text(errors="replace") if log.exists() else ""
            lines += [f"    {name}: {line}" for line in text.splitlines()[-15:]]
        return "\n".join(lines)
