"""One cell with all of its runs: what is done here at once, or is one job of a site's queue.

outputs/lab/<study>/jobs/<its first run>/
    cell.json   what was submitted: the configuration, and the overrides that make the cell
    finished    what came out, once all runs are there
    slurm/      logs of its jobs (`pww.launcher.arrays`)
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pww.clock import Clock
from pww.config import paths
from pww.config.schema.lab import LabConfig
from pww.folder import write_durably
from pww.lab import tune
from pww.lab.cells import Value, cell_id
from pww.lab.records import is_finished
from pww.lab.study import DONE, JOBS

FILE = "cell.json"


@dataclass(frozen=True, slots=True)
class Job:
    """A cell, as it was typed; `rated`: so was its learning rate."""

    config: LabConfig
    cell: Mapping[str, Value]
    rated: bool

    @property
    def study(self) -> Path:
        """The folder of its study."""
        return paths.PROJECT / self.config.lab.root / self.config.lab.study

    @property
    def plan(self) -> list[tune.Planned]:
        """Its runs, in the order in which they are made."""
        return tune.plan(self.config, self.cell, rated=self.rated)

    @property
    def left(self) -> list[str]:
        """Names of those of its runs that are not finished."""
        return [one.name for one in self.plan if not is_finished(self.study / one.name)]

    @property
    def root(self) -> Path:
        """Where jobs of the study have their folders."""
        return self.study / JOBS

    @property
    def folder(self) -> Path:
        """Its own as a job: no two jobs that may run at once have a run in common."""
        return self.root / self.plan[0].name

    def carry_out(self, *, code: str, clock: Clock) -> str:
        """Makes the runs that are not there; what came out, on a line.

        Raises:
            LabError: a folder holds another run, or cannot be read.
            OSError: the disk refused.
        """
        made = tune.carry_out(
            self.config, self.cell, self.plan, folder=self.study, code=code, clock=clock
        )
        told = f"{cell_id(self.cell)}: {made}"
        if self.folder.exists():  # it was a job at some time
            write_durably(self.folder / DONE, f"{told}\n".encode())
        return told

    def write(self) -> None:
        """Makes its folder, for `read`; it has not ended.

        Raises:
            OSError: the disk refused.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / DONE).unlink(missing_ok=True)
        config = self.config.model_dump(mode="json")
        text = json.dumps({"cell": dict(self.cell), "rated": self.rated, "config": config})
        write_durably(self.folder / FILE, f"{text}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """What `write` wrote."""
        row = json.loads((folder / FILE).read_text())
        config = LabConfig.model_validate_json(json.dumps(row["config"]))
        return cls(config, row["cell"], row["rated"])
