"""Has every rank a device and cores of its own? Two on one are half as fast and say nothing.

What ranks tell is judged by pure functions, so that any machine's answers can be tried anywhere.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pww.config.check_site import cores_of, is_full
from pww.config.schema import Config, Site
from pww.smoke.book import SHOWN, Check


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank computes."""

    rank: int
    local: int
    host: str
    device: str  # what no other device of the host is called; "" on a CPU
    cores: tuple[int, ...]  # that it may run on


def seat(config: Config, *, rank: int) -> dict[str, Any]:
    """This process's, as it is told to the others."""
    device = ""
    if config.site.device != "cpu":
        facts: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        # The two halves of a card have a bus each; uuid is not filled in by every driver
        device = f"{facts.name} {facts.uuid} {facts.pci_domain_id}:{facts.pci_bus_id}"
    return asdict(
        Seat(
            rank, int(os.environ["LOCAL_RANK"]), socket.gethostname(), device,
            tuple(sorted(os.sched_getaffinity(0))),
        )
    )  # fmt: skip


def seats(told: Sequence[Mapping[str, Any]]) -> list[Seat]:
    """What all ranks told."""
    return [Seat(**{**one, "cores": tuple(one["cores"])}) for one in told]


def devices(site: Site, told: Sequence[Seat]) -> Iterator[Check]:
    """No two ranks on one device."""
    num_hosts = len({one.host for one in told})
    where = f"{len(told)} rank(s) on {num_hosts} node(s)"
    if site.device == "cpu":
        yield Check("devices", "unchecked", f"{where}, which compute on CPUs: there is none")
        return
    taken: dict[tuple[str, str], int] = {}
    shared = []
    for one in told:
        first = taken.setdefault((one.host, one.device), one.rank)
        if first != one.rank:
            shared.append(f"ranks {first} and {one.rank} are both on {one.device} of {one.host}")
    if shared:
        yield Check("devices", "wrong", f"{_some(shared)}; one device a rank")
        return
    kinds = ", ".join(
        f"{num} x {name}" for name, num in Counter(_name(one.device) for one in told).items()
    )
    yield Check("devices", "right", f"{where}, each with a device of its own: {kinds}")


def cores(site: Site, told: Sequence[Seat]) -> Iterator[Check]:
    """The cores that the site's masks name; without masks, none that another rank has too."""
    queue = site.queue
    if site.cpu_masks and queue.kind == "slurm" and is_full(site, queue):
        yield _masked(site, told)
        return
    clashes, free, alone = [], [], True
    for host in dict.fromkeys(one.host for one in told):
        here = [one for one in told if one.host == host]
        alone = alone and len(here) == 1
        if len(here) > 1 and len({one.cores for one in here}) == 1:
            free.append(f"all {len(here)} ranks of {host} may run on any of its "
                        f"{len(here[0].cores)} core(s)")  # fmt: skip
            continue
        taken: dict[int, int] = {}
        for one in here:
            for core in one.cores:
                if taken.setdefault(core, one.rank) != one.rank:
                    clashes.append(f"core {core} of {host} is of rank {taken[core]} and of rank "
                                   f"{one.rank}")  # fmt: skip
                    break
    if clashes:
        yield Check("cores", "wrong", f"{_some(clashes)}; bind each rank to its own")
    elif free:
        yield Check("cores", "unchecked", f"nothing binds ranks to cores: {_some(free)}")
    elif alone:
        yield Check("cores", "unchecked", "there is no second rank on a node")
    else:
        yield Check("cores", "right", "no two ranks of a node may run on the same core")


def _masked(site: Site, told: Sequence[Seat]) -> Check:
    wrong = []
    for one in told:
        mask = site.cpu_masks[one.local]
        if list(one.cores) != cores_of(mask):
            wrong.append(f"rank {one.rank} may run on cores {_runs(one.cores)}, and its mask "
                         f"{mask} (site.cpu_masks) names {_runs(cores_of(mask))}")  # fmt: skip
    if wrong:
        return Check("cores", "wrong", _some(wrong))
    return Check("cores", "right", "each rank is bound to the cores of its mask (site.cpu_masks)")


def _runs(numbers: Sequence[int]) -> str:
    """1-3,7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _name(device: str) -> str:
    """Without what tells it from others of its kind."""
    return " ".join(device.split()[:-2])


def _some(sentences: Sequence[str]) -> str:
    more = f"; {len(sentences) - SHOWN} more like it" if len(sentences) > SHOWN else ""
    return "; ".join(sentences[:SHOWN]) + more
