"""Rules that a machine's queue has: a job that breaks one is refused here and never reaches it.

Those of `OF_ANY_JOB` hold whatever the job does. Nothing asks which machine it is: the partitions
and their facts are in `conf/site/`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from pww.config.schema import Config, Site, Slurm


class Placed(Protocol):
    """A configuration that says where its job runs."""

    @property
    def site(self) -> Site:
        """The machine."""


def ranks_fill_nodes(config: Config) -> Iterator[str]:
    """A rank is one device of the allocation, and every device has a rank."""
    site, ranks = config.site, config.parallel.ranks
    whole = site.num_nodes * site.ranks_per_node
    if ranks != whole:
        yield (
            f"parallel.ranks={ranks}: site.num_nodes={site.num_nodes} x "
            f"site.ranks_per_node={site.ranks_per_node} are {whole} ranks; leave parallel.ranks "
            "out, or change the nodes"
        )


def in_place_is_one_node(config: Placed) -> Iterator[str]:
    """Without a queue nobody starts ranks elsewhere."""
    site = config.site
    if site.queue.kind == "none" and site.num_nodes != 1:
        yield f"site.num_nodes={site.num_nodes}: site {site.name} has no queue and runs on one node"


def partition_is_known(config: Placed) -> Iterator[str]:
    """Partition and cores travel together."""
    site, queue = config.site, config.site.queue
    if queue.kind != "slurm":
        return
    if not queue.partitions:
        return
    if queue.partition not in queue.partitions:
        names = ", ".join(queue.partitions)
        yield f"site.queue.partition={queue.partition}: {site.name} has {names}"
        return
    facts = queue.partitions[queue.partition]
    if site.cores_per_rank != facts.cores_per_gpu:
        yield (
            f"site.cores_per_rank={site.cores_per_rank}: {queue.partition} gives "
            f"{facts.cores_per_gpu} cores with a GPU; leave site.cores_per_rank out"
        )
    if facts.own_memory and queue.memory == "0":
        yield (
            f"site.queue.memory=0: {queue.partition} gives memory with the GPUs and bills all of "
            'the node\'s; use site.queue.memory=""'
        )
    elif facts.own_memory and queue.memory:
        yield (
            f"site.queue.memory={queue.memory}: {queue.partition} gives memory with the GPUs; use "
            'site.queue.memory=""'
        )


def time_fits(config: Placed) -> Iterator[str]:
    """Long enough to stop in order, short enough for the partition."""
    queue = config.site.queue
    if queue.kind != "slurm":
        return
    hours = _hours(queue.time)
    facts = queue.partitions.get(queue.partition)
    if facts is not None and hours > facts.max_hours:
        yield (
            f"site.queue.time={queue.time}: {queue.partition} ends a job after "
            f"{facts.max_hours:g} h; give at most that"
        )
    if hours * 3600 <= queue.signal_s:
        yield (
            f"site.queue.time={queue.time}: must be longer than the {queue.signal_s} s before its "
            "end at which the job stops (site.queue.signal_s)"
        )


def trials_are_short(config: Config) -> Iterator[str]:
    """What is tried starts soon."""
    queue = config.site.queue
    if queue.kind != "slurm" or not config.model.name.endswith("_debug"):
        return
    facts = queue.partitions.get(queue.partition)
    if facts is not None and facts.max_hours >= _hours(queue.time) > facts.short_hours > 0:
        yield (
            f"site.queue.time={queue.time}: model={config.model.name} is for trying things, and "
            f"{queue.partition} starts jobs of at most {facts.short_hours:g} h much sooner; give "
            "at most that"
        )


def gpus_fit(config: Placed) -> Iterator[str]:
    """One GPU a rank; several nodes, and partitions of whole nodes, take every GPU."""
    site, queue = config.site, config.site.queue
    if queue.kind != "slurm":
        return
    if queue.gpus_per_node != site.ranks_per_node:
        yield (
            f"site.queue.gpus_per_node={queue.gpus_per_node}: one GPU a rank, and "
            f"site.ranks_per_node={site.ranks_per_node}; leave it out"
        )
    if site.ranks_per_node > queue.node_gpus:
        yield (
            f"site.ranks_per_node={site.ranks_per_node}: a node of {site.name} has "
            f"{queue.node_gpus} GPUs, one a rank; 1 to {queue.node_gpus}"
        )
        return
    if is_full(site, queue):
        return
    part = f"{site.ranks_per_node} of {queue.node_gpus} GPUs"
    facts = queue.partitions.get(queue.partition)
    if site.num_nodes > 1:
        yield (
            f"site.ranks_per_node={site.ranks_per_node}: a job of {site.num_nodes} nodes must take "
            f"all {queue.node_gpus} GPUs of each; use site.ranks_per_node={queue.node_gpus}"
        )
    elif facts is not None and facts.whole_nodes:
        shared = [name for name, p in queue.partitions.items() if not p.whole_nodes]
        yield (
            f"site.queue.partition={queue.partition}: has whole nodes only, and this job takes "
            f"{part}; use one of {', '.join(shared)}, or site.ranks_per_node={queue.node_gpus}"
        )
    elif queue.exclusive:
        yield (
            f"site.queue.exclusive=true: would take and bill the whole node for {part}; "
            "use site.queue.exclusive=false"
        )


def cores_fit(config: Placed) -> Iterator[str]:
    """Ranks do not ask for more cores than a job may use."""
    site = config.site
    cores = site.ranks_per_node * site.cores_per_rank
    if site.queue.kind == "slurm" and cores > site.node_cores:
        yield (
            f"site.cores_per_rank={site.cores_per_rank}: {site.ranks_per_node} ranks want {cores} "
            f"cores of a node, site.node_cores={site.node_cores}"
        )


def masks_fit(config: Placed) -> Iterator[str]:
    """One mask a rank of a full node, its cores disjoint from all others' and from the system's."""
    site = config.site
    if not site.cpu_masks:
        return
    full = site.queue.node_gpus if site.queue.kind == "slurm" else site.ranks_per_node
    if len(site.cpu_masks) != full:
        yield f"site.cpu_masks: {len(site.cpu_masks)} masks, but a full node has {full} ranks"
    taken: dict[int, int] = dict.fromkeys(site.reserved_cores, -1)
    for rank, mask in enumerate(site.cpu_masks):
        key = f"site.cpu_masks[{rank}]={mask}"
        if not re.fullmatch(r"0x[0-9a-f]+", mask):
            yield f"{key}: a hexadecimal mask of cores, such as 0xfe"
            continue
        cores = cores_of(mask)
        if len(cores) != site.cores_per_rank:
            yield f"{key}: {len(cores)} cores, but site.cores_per_rank={site.cores_per_rank}"
        for core in cores:
            if core not in taken:
                taken[core] = rank
            elif taken[core] < 0:
                yield f"{key}: core {core} is the operating system's (site.reserved_cores)"
            else:
                yield f"{key}: core {core} is rank {taken[core]}'s already"


def setup_is_safe(config: Placed) -> Iterator[str]:
    """No line of the batch script fixes the ranks' port, or downloads on a compute node."""
    queue = config.site.queue
    if queue.kind != "slurm":
        return
    lines = {f"site.queue.setup[{number}]": line for number, line in enumerate(queue.setup)}
    for key, line in {**lines, "site.queue.python": queue.python}.items():
        if re.search(r"\bMASTER_PORT=", line):
            yield (
                f"{key}={line}: two jobs of one user can land on one node, so the port of the "
                "ranks is derived from the job's id; leave MASTER_PORT out"
            )
        if found := _DOWNLOADS.search(line):
            yield (
                f"{key}={line}: {found[0]} in a job: downloads happen on login nodes only; do it "
                "there, once, before submitting"
            )


_DOWNLOADS = re.compile(
    r"\b(wget|curl|pip3? (install|download)|uv (pip|sync|add)|(conda|mamba) (install|create|env)"
    r"|git (clone|pull|fetch)|(singularity|apptainer) (pull|build)|(huggingface-cli|hf) download)\b"
)
"""Commands that fetch things from outside."""


def cores_of(mask: str) -> list[int]:
    """The cores that a hexadecimal mask names."""
    bits = int(mask, 16)
    return [core for core in range(bits.bit_length()) if bits >> core & 1]


def is_full(site: Site, queue: Slurm) -> bool:
    """Whether the job takes every GPU of its nodes."""
    return site.ranks_per_node == queue.node_gpus


def _hours(time: str) -> float:
    days, _, clock = time.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return int(days or 0) * 24 + hours + minutes / 60 + seconds / 3600


OF_ANY_JOB: tuple[tuple[tuple[str, ...], Callable[[Placed], Iterator[str]]], ...] = (
    (("site.num_nodes", "site.queue.kind"), in_place_is_one_node),
    (("site.queue", "site.cores_per_rank"), partition_is_known),
    (("site.queue",), time_fits),
    (("site.queue",), setup_is_safe),
    (("site.queue", "site.ranks_per_node", "site.cores_per_rank", "site.node_cores"), cores_fit),
    (("site.queue", "site.cpu_masks", "site.reserved_cores", "site.cores_per_rank"), masks_fit),
)
GPUS = ("site.queue", "site.num_nodes", "site.ranks_per_node")
RULES: tuple[tuple[tuple[str, ...], Callable[[Config], Iterator[str]]], ...] = (
    (("parallel.ranks", "site.num_nodes", "site.ranks_per_node"), ranks_fill_nodes),
    (("site.queue", "model.name"), trials_are_short),
    (GPUS, gpus_fit),
    *OF_ANY_JOB,
)
