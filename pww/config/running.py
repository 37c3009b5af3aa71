"""What becomes of checked jobs: run here under Hydra, or handed to a queue.

Jobs that are known go to the queue all at once, without Hydra's sweeper, which would compose each
of them twice more. A sweeper that chooses its jobs as it goes (an optimiser) runs under Hydra and
reaches the queue through our launcher plugin, which calls `Chosen.launch`.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pww.config.compose import register_resolvers
from pww.config.line import Line
from pww.errors import ConfigError, PwwError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from pww.config.prepare import Prepared, Refine
    from pww.config.schema import Config

Task = Callable[[Any], int]
"""A program's main: a checked configuration in, an exit code out."""

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one job that was handed to a queue."""

    code: int
    objective: float = math.nan  # what a sweeper minimises; nan: not known


Queue = Callable[[Sequence[Any]], Sequence[Done]]
"""Takes all jobs of a command line whose site has a queue."""


def wants_queue(configs: Sequence["Config"]) -> bool:
    """Whether these jobs go to a queue.

    Raises:
        ConfigError: some do and some do not.
    """
    queued = [config for config in configs if config.site.queue.kind == "slurm"]
    if queued and len(queued) < len(configs):
        here = next(c.site.name for c in configs if c.site.queue.kind == "none")
        raise ConfigError(
            [
                f"site={queued[0].site.name},{here}: the one has a queue and the other has none; "
                "start them with two commands"
            ]
        )
    return bool(queued)


def hand_over(queue: Queue, configs: Sequence["Config"]) -> int:
    """Hands all jobs to the queue; the highest of their exit codes."""
    return guarded(lambda: max((done.code for done in queue(configs)), default=0))


class Chosen:
    """The task function of a sweeper that chooses its jobs as it goes; for our launcher alone."""

    def __init__(
        self, queue: Queue, line: Line, *, defaults: Sequence[str], refine: "Refine | None"
    ) -> None:
        self._queue, self._line, self._defaults, self._refine = queue, line, defaults, refine
        self.bug: Exception | None = None
        self.code = 0

    def __call__(self, _: "DictConfig") -> None:
        """Never: a launcher that runs jobs in this process is not ours."""
        raise ConfigError(["hydra/launcher: jobs of a site with a queue are started by slurm only"])

    def launch(self, jobs: Sequence[Sequence[str]]) -> Sequence[Done]:
        """Checks and queues a batch of jobs, and returns what became of each."""
        from pww.config.prepare import prepare

        done: list[Done] = []

        def work() -> int:
            configs = [
                prepare(
                    job, defaults=self._defaults, source=self._line.source, refine=self._refine
                ).configs[0]
                for job in jobs
            ]
            done.extend(self._queue(configs))
            return 0

        try:
            code = guarded(work)
        except Exception as bug:
            # As in run_here: Hydra would cut the traceback
            self.bug = bug
            raise SystemExit(1) from None
        if code:
            raise SystemExit(code)
        self.code = max([self.code, *(one.code for one in done)])
        return done


def hand_over_chosen(
    queue: Queue,
    prepared: "Prepared",
    line: Line,
    *,
    program: str,
    defaults: Sequence[str],
    refine: "Refine | None",
) -> int:
    """Lets Hydra's sweeper choose the jobs, batch by batch; the highest of their exit codes.

    Raises:
        ConfigError: it would not learn what its jobs came to.
    """
    if not all(config.launcher.wait for config in prepared.configs):
        raise ConfigError(
            [
                f"hydra/sweeper={prepared.sweeper}: chooses the next job by the loss of those "
                "before; give launcher.wait=true"
            ]
        )
    chosen = Chosen(queue, line, defaults=defaults, refine=refine)
    words = [w for w in prepared.words if not w.startswith("hydra/launcher=")]
    code = under_hydra(chosen, line, [*words, "hydra/launcher=slurm"], program=program)
    if chosen.bug is not None:
        raise chosen.bug
    return max(code, chosen.code)


def under_hydra(
    job: "Callable[[DictConfig], None]", line: Line, words: Sequence[str], *, program: str
) -> int:
    """Hydra's main on this command line; its exit code."""
    import hydra

    register_resolvers()
    before = sys.argv
    sys.argv = [program, *words, *line.flags]  # a bare --info would take the word after it
    source = line.source
    main = hydra.main(
        version_base="1.3", config_path=str(source.config_dir), config_name=source.config_name
    )
    try:
        main(job)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0


def run_here(task: Task, prepared: "Prepared", line: Line, *, program: str) -> int:
    """Runs the jobs one after another under Hydra; the highest of their exit codes."""
    from hydra.core.hydra_config import HydraConfig

    codes: list[int] = []
    bugs: list[Exception] = []

    def job(_: "DictConfig") -> None:
        number = HydraConfig.get().job.num if prepared.multirun else 0
        try:
            codes.append(guarded(lambda: task(prepared.configs[number])))
        except Exception as bug:
            # Hydra would cut the traceback of our own bug and print advice about itself
            bugs.append(bug)
            raise SystemExit(1) from None
        if codes[-1] == INTERRUPTED:
            raise SystemExit(INTERRUPTED)

    code = under_hydra(job, line, prepared.words, program=program)
    if bugs:
        raise bugs[0]
    return max([code, *codes])


def guarded(work: Callable[[], int]) -> int:
    """A fault ends in its sentence, never in a traceback."""
    try:
        return work()
    except PwwError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
