"""Joins the ranks of an allocation: a world for each replica, and circles across them.

The default process group is the replica's, so that the trainer, its meshes and its checkpoints are
the same with one replica and with many. The rest are bare groups on other prefixes of the same
store: torch's own registry knows groups within one world only.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store

from pww.config.schema import Config
from pww.replica.blocks import Blocks
from pww.replica.circle import Circle, Group
from pww.replica.everyone import Everyone
from pww.replica.parting import Parting
from pww.trainer.ranks import Ranks, init_ranks, join, meet, together

MEET_S = 3600.0
"""How long the replicas wait for each other at the end of a phase. One that died is noticed at
once, by its closed connections; this is for one that hangs."""
STOP = "pww/stop"


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where this process is: `ranks` are its replica's, `everyone` all."""

    blocks: Blocks
    replica: int
    ranks: Ranks
    everyone: Ranks
    inner: Circle
    outer: Circle
    across: Circle  # all ranks
    parting: Parting
    store: Store | None = None  # None: one replica, which has nobody to tell

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for the allocation: rank 0 of all."""
        return self.everyone.rank == 0

    def stop_all(self) -> None:
        """This replica ends its phase early: the others shall too, each at its next look.

        Raises:
            TrainerError: the rank that keeps the store is gone.
        """
        if self.store is not None and self.ranks.rank == 0:
            with together("allocation"):
                self.store.set(STOP, "")

    def look(self) -> None:
        """Whether another replica was asked to stop; rank 0 of a replica, now and then.

        Raises:
            TrainerError: as `stop_all`.
        """
        if self.store is None:
            return
        with together("allocation"):
            asked = self.store.check([STOP])
        if asked:
            self.ranks.asked.set()


def join_ranks(config: Config) -> Allocation:
    """Joins the process groups that the environment names; alone if it does not.

    Raises:
        TrainerError: as `init_ranks`, or the ranks cannot be equal blocks.
    """
    if config.diloco.replicas == 1:
        init_ranks(config)
        ranks = Ranks()
        alone = Circle(None, device=torch.device("cpu"))
        blocks = Blocks.of(ranks.world, replicas=1)
        across = Circle(cast("Group | None", ranks.group), device=torch.device("cpu"))
        met = _get_default_store() if ranks.world > 1 else None
        parting = Parting(met, rank=ranks.rank, world=ranks.world)
        return Allocation(blocks, 0, ranks, ranks, alone, alone, across, parting)
    store, rank, world = meet(config)
    blocks = Blocks.of(world, replicas=config.diloco.replicas)
    replica, place = blocks.replica(rank), blocks.place(rank)
    own = PrefixStore(f"replica-{replica}", store)
    join(config, store=own, rank=place, world=blocks.size)
    ranks = Ranks()

    def circle(name: str, at: int, size: int, make: Callable[..., Group]) -> Circle:
        group = make(PrefixStore(name, store), at, size) if size > 1 else None
        return Circle(group, device=_device(make))

    across = circle("everyone", rank, world, _gloo)
    return Allocation(
        blocks, replica, ranks,
        everyone=Everyone(across, asked=ranks.asked),
        inner=circle(f"inner-{replica}", place, blocks.size, _gloo),
        outer=circle(f"outer-{place}", replica, blocks.replicas, _across(config)),
        across=across,
        parting=Parting(store, rank=rank, world=world),
        store=store,
    )  # fmt: skip


def over_all(config: Config, place: Allocation) -> dist.ProcessGroup:
    """Collective: a group of all ranks on their devices; the replica's own where it is alone.

    No part of training, which sums gradients within a replica: it is for measuring.
    """
    if place.store is None:
        assert dist.group.WORLD is not None
        return dist.group.WORLD
    make = _gloo if config.site.device == "cpu" else _nccl
    group = make(PrefixStore("over-all", place.store), place.across.place, place.across.size)
    return cast("dist.ProcessGroup", group)


def _across(config: Config) -> Callable[..., Group]:
    """Deltas travel from device to device, unless theta_outer is in host memory anyway."""
    on_device = config.site.device != "cpu" and config.diloco.outer.device == "model"
    return _nccl if on_device else _gloo


def _gloo(store: Store, rank: int, size: int) -> Group:
    return cast("Group", dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=MEET_S)))


def _nccl(store: Store, rank: int, size: int) -> Group:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=MEET_S)
    return cast("Group", dist.ProcessGroupNCCL(store, rank, size, options))


def _device(make: Callable[..., Group]) -> torch.device:
    if make is _nccl:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device("cpu")
