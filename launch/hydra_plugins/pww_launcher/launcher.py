"""Between a sweeper of Hydra that chooses its jobs as it goes, and the queue of a site.

Thin on purpose: jobs are checked, queued and waited for by `pww` (`config.running.Chosen`,
`launcher.submit`). Nothing is pickled: a job is a run folder, and a sweeper gets numbers back.
"""

from collections.abc import Sequence

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class SlurmLauncher(Launcher):
    """Queues each batch of jobs as arrays, waits for them and returns their held-out losses."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra tells every launcher."""
        self._task = task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """One result a job, in order; the result of one that did not finish raises."""
        launch = getattr(self._task, "launch", None)
        if launch is None:
            raise HydraException("hydra/launcher=slurm starts jobs of pww.train only")
        returns = []
        for job, done in zip(job_overrides, launch(job_overrides), strict=True):
            good = done.code == 0
            returns.append(
                JobReturn(
                    overrides=list(job),
                    status=JobStatus.COMPLETED if good else JobStatus.FAILED,
                    _return_value=done.objective
                    if good
                    else RuntimeError("the run did not finish"),
                )
            )
        return returns
