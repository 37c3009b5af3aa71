"""Is an all-reduce right, and as fast as this site's was?

The values are whole numbers whose sums fp32 holds, so that any order of adding gives the same and
one wrong bit is seen.
"""

import statistics
from typing import Literal

import torch
from torch import distributed as dist

from pww.clock import Clock
from pww.config.schema import Config
from pww.replica.circle import Circle
from pww.replica.groups import Allocation, over_all
from pww.smoke.book import Check
from pww.smoke.tell import complaints

MEASURED_BYTES = 256 << 20
"""What the sites' figures were measured with."""
MEASURED_CPU_BYTES = 8 << 20
TIMES = 5
LEAST, MOST = 0.5, 2.0
"""Of the site's figure: what is plausible."""
TCP_GB_S = 10.0


def right(place: Allocation, config: Config) -> tuple[list[Check], dist.ProcessGroup | None]:
    """Collective: sums over a replica's ranks, as gradients are, and over all; and that group."""
    everywhere = place.across.size
    if everywhere == 1:
        return [Check("all-reduce", "unchecked", "one rank: there is nothing to reduce")], None
    group = over_all(config, place)
    found = _wrong(place.ranks.rank, place.ranks.world, dist.group.WORLD, config)
    if place.store is not None:
        found += _wrong(place.across.place, everywhere, group, config)
    told = complaints(place.across, found[0] if found else "")
    if told:
        return [Check("all-reduce", "wrong", told)], group
    over = f"the {place.ranks.world} rank(s) of a replica and " if place.store is not None else ""
    return [Check("all-reduce", "right", f"exact over {over}all {everywhere} ranks")], group


def _wrong(rank: int, world: int, group: "dist.ProcessGroup | None", config: Config) -> list[str]:
    """Collective: what is wrong with a reduction of each length. All are made, whatever this rank
    saw of the first: the others wait in the next one.
    """
    assert group is not None
    wrong = []
    for num in (1, 7, 100_003):
        pattern = torch.arange(num, dtype=torch.float32) % 97 + 1
        mine = (pattern * factor(rank)).to(device_of(config))
        summed(group, mine)
        expected = pattern * sum(map(factor, range(world)))
        found = mine.cpu()
        if not torch.equal(found, expected):
            at = int((found != expected).nonzero()[0])
            wrong.append(
                f"has {float(found[at]):.9g} where {float(expected[at]):.9g} is the sum over "
                f"{world} rank(s) (value {at + 1} of {num})"
            )
    return wrong


def factor(rank: int) -> int:
    """What tells neighbours apart: so small that sums over 20,000 ranks are exact in fp32, in any
    order.
    """
    return rank % 16 + 1


def summed(group: dist.ProcessGroup, tensor: torch.Tensor) -> None:
    """Collective: replaces `tensor` by the sum over the group's ranks."""
    group.allreduce([tensor], dist.AllreduceOptions()).wait()


def device_of(config: Config) -> torch.device:
    """What this rank computes on."""
    if config.site.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def bandwidth(
    config: Config, group: dist.ProcessGroup, across: Circle, *, num_nodes: int, clock: Clock
) -> Check:
    """Collective: bus bandwidth of an all-reduce over all ranks, the slowest rank's median."""
    on_cpu = config.site.device == "cpu"
    num_bytes = MEASURED_CPU_BYTES if on_cpu else MEASURED_BYTES
    tensor = torch.zeros(num_bytes // 4, device=device_of(config))
    took = []
    for _ in range(TIMES + 2):
        across.numbers(0.0)  # all begin together
        began_s = clock.monotonic()
        summed(group, tensor)
        settle(tensor.device)
        took.append(clock.monotonic() - began_s)
    seconds = max(one for (one,) in across.numbers(statistics.median(took[2:])))
    bus = 2 * (across.size - 1) / across.size
    return judged(
        config, bus * num_bytes / seconds / 1e9, num_mib=num_bytes >> 20, num_nodes=num_nodes
    )


def judged(config: Config, found_gb_s: float, *, num_mib: int, num_nodes: int) -> Check:
    """Against the site's figure, where there is one for this shape of a job."""
    site, queue = config.site, config.site.queue
    told = (
        f"{found_gb_s:.3g} GB/s, an all-reduce of {num_mib} MiB over {config.parallel.ranks} ranks"
    )
    slow = num_nodes > 1 and site.device != "cpu" and found_gb_s < TCP_GB_S
    hint = (
        "; so little across nodes means that the collective library fell back to TCP: look at "
        "site.interface, and at the libraries of the network in the container"
        if slow
        else ""
    )
    figure = site.allreduce_nodes_gb_s if num_nodes > 1 else site.allreduce_node_gb_s
    figures = {"allreduce_gb_s": round(found_gb_s, 3)}

    def check(state: Literal["right", "unchecked", "wrong"], text: str) -> Check:
        return Check("bandwidth", state, f"{told}; {text}{hint}", figures)

    if figure == "none":
        return check("unchecked", f"site {site.name} has no figure to hold it against")
    if site.device == "cpu" or (queue.kind == "slurm" and site.ranks_per_node < queue.node_gpus):
        return check("unchecked", "the site's figure is for full nodes of its devices")
    if not LEAST * figure <= found_gb_s <= MOST * figure:
        return check("wrong", f"{figure:g} was measured at this site, and {LEAST:g} to {MOST:g} "
                              "times that is plausible")  # fmt: skip
    return check("right", f"{figure:g} was measured at this site")


def settle(device: torch.device) -> None:
    """Waits until the device has done what it was told."""
    if device.type != "cpu":
        torch.cuda.synchronize(device)
