"""The batch script of a site with a queue, made by submitit, written nowhere."""

import shlex

from submitit.slurm.slurm import _make_sbatch_string

from pww.config import paths
from pww.config.check_site import is_full
from pww.config.schema import Config, Slurm


def script(config: Config, queue: Slurm) -> str:
    """The script that would be given to `sbatch`: one Slurm task a rank.

    Masks bind the ranks of a full node; a part of a node is bound by `cpu_bind`, since masks
    outside of the allocation make the step fail. `--cpus-per-task` goes to srun too, which does
    not inherit it.
    """
    site = config.site
    folder = paths.run_folder(config)
    masks = bool(site.cpu_masks) and is_full(site, queue)
    bind = f"mask_cpu:{','.join(site.cpu_masks)}" if masks else queue.cpu_bind
    text: str = _make_sbatch_string(
        command=f"{queue.python} -m pww.worker {shlex.quote(str(folder))}",
        folder=folder / "slurm",
        job_name=f"pww-{config.run.name}",
        partition=queue.partition,
        account=queue.account or None,
        time=queue.time,
        nodes=site.num_nodes,
        ntasks_per_node=site.ranks_per_node,
        gpus_per_node=queue.gpus_per_node,
        cpus_per_task=site.cores_per_rank,
        mem=queue.memory or None,
        exclusive=queue.exclusive or None,
        signal_delay_s=queue.signal_s,
        wckey=None,
        setup=[
            f"cd {shlex.quote(str(paths.PROJECT))}",
            f"export OMP_NUM_THREADS={site.cores_per_rank}",
            # A compute node downloads nothing: what is missing is a fault at once, not a long wait
            "export HF_HUB_OFFLINE=1",
            *queue.setup,
        ],
        srun_args=[
            f"--cpus-per-task={site.cores_per_rank}",
            f"--cpu-bind={bind}",
            f"--distribution={queue.distribution}",
            "--kill-on-bad-exit=1",
        ],
    )
    return text


def summary(config: Config, queue: Slurm) -> str:
    """The script's facts on one line."""
    site = config.site
    account = queue.account or "the scheduler's default (site.queue.account=…, or PWW_ACCOUNT)"
    return (
        f"dry: nothing was queued. {site.name}, partition {queue.partition}, "
        f"{site.num_nodes} node(s) x {site.ranks_per_node} ranks = {config.parallel.ranks} ranks, "
        f"{site.cores_per_rank} cores each, time {queue.time}, account {account}"
    )
