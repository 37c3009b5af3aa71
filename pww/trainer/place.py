"""Which rank this process is, of how many, and where they meet: from torchrun, srun, or alone.

    torchrun   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: taken as they are
    srun       SLURM_STEP_ID and SLURM_PROCID (a batch shell has PROCID alone): rank 0 is on the
               first host of the step's list, its port is derived from the job's id
    alone      neither: rank 0 of 1

Torchrun's variables come first: it may itself be started by srun. No torch, and no `scontrol`:
a container has none.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pww.errors import TrainerError

FIRST_PORT, NUM_PORTS = 10_000, 20_000
"""Where ranks meet: below the ports that Linux hands out by itself (from 32768)."""


@dataclass(frozen=True, slots=True)
class Place:
    """One process among the ranks of its replica."""

    how: Literal["torchrun", "srun", "alone"]
    rank: int
    world: int
    local_rank: int
    num_nodes: int  # 1 where torchrun does not say
    address: str  # of rank 0; "" alone
    port: int  # 0 alone

    def variables(self) -> dict[str, str]:
        """What torch and torchtitan read; nothing that torchrun has said is said again, and a rank
        that meets nobody needs no port, which another process may hold.
        """
        if self.how != "srun" or self.world == 1:
            return {}
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def found(environ: Mapping[str, str]) -> Place:
    """This process's place.

    Raises:
        TrainerError: a variable is missing or is no number.
    """
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if environ.get("SLURM_STEP_ID", "").isdecimal() and "SLURM_PROCID" in environ:
        return _srun(environ)
    return Place("alone", rank=0, world=1, local_rank=0, num_nodes=1, address="", port=0)


def check(place: Place, *, ranks: int) -> None:
    """The ranks that were started are those that the run was composed for.

    Raises:
        TrainerError: they are not: what they train on would never be a whole batch.
    """
    if place.world != ranks:
        started = {
            "torchrun": f"WORLD_SIZE={place.world}",
            "srun": f"srun started {place.world} task(s)",
            "alone": "this process was started alone",
        }[place.how]
        raise TrainerError(
            f"{started}, and the run has parallel.ranks={ranks}: start it with pww.train, which "
            "starts as many, or start a new run with the number that you have"
        )


def port_of(job: int, step: int = 0) -> int:
    """The port where a step's ranks meet: two jobs of one user that share a node have two."""
    return FIRST_PORT + (job + step) % NUM_PORTS


def hosts(nodes: str) -> Iterator[str]:
    """The names in a list as Slurm writes it, in its order: `a,n[1-3,07]x` and the like.

    Raises:
        TrainerError: it cannot be read.
    """
    if not _LIST.fullmatch(nodes):
        raise TrainerError(f"SLURM_STEP_NODELIST={nodes}: is no list of hosts as Slurm writes it")
    for group in re.findall(_GROUP, nodes):
        yield from _expanded(group)


_NUMBERS = r"\d+(?:-\d+)?"
_GROUP = rf"(?:[^\[\],\s]|\[{_NUMBERS}(?:,{_NUMBERS})*\])+"
_LIST = re.compile(rf"{_GROUP}(?:,{_GROUP})*")


def _expanded(group: str) -> Iterator[str]:
    head, bracket, rest = group.partition("[")
    if not bracket:
        yield head
        return
    inside, _, tail = rest.partition("]")
    tails = list(_expanded(tail))
    for part in inside.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in tails:
                yield f"{head}{number:0{len(first)}d}{end}"


def _torchrun(environ: Mapping[str, str]) -> Place:
    """What is missing is left to torch, which names it."""
    number = _numbers(environ)
    world, local = number("WORLD_SIZE", "1"), number("LOCAL_WORLD_SIZE", "0")
    return Place(
        "torchrun",
        rank=number("RANK", "0"),
        world=world,
        local_rank=number("LOCAL_RANK", "0"),
        num_nodes=-(-world // local) if local else 1,
        address=environ.get("MASTER_ADDR", ""),
        port=number("MASTER_PORT", "0"),
    )


def _srun(environ: Mapping[str, str]) -> Place:
    number = _numbers(environ)
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    names = list(hosts(listed))
    return Place(
        "srun",
        rank=number("SLURM_PROCID"),
        world=number("SLURM_NTASKS"),
        local_rank=number("SLURM_LOCALID"),
        num_nodes=len(names),
        # A node need not be able to resolve its own name
        address=names[0] if len(names) > 1 else "127.0.0.1",
        port=port_of(number("SLURM_JOB_ID"), number("SLURM_STEP_ID")),
    )


class _numbers:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __call__(self, name: str, default: str = "") -> int:
        text = self._environ.get(name, default)
        if not text.isdecimal():
            raise TrainerError(
                f"{name}={text or '(not set)'}: must be a whole number; srun and torchrun set it, "
                "so start the ranks with one of them, or with pww.train"
            )
        return int(text)
