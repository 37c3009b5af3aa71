"""Do the replicas of an allocation meet whom they should, and does an outer step move theta right?

A replica's inner weights are put at a known place, and its own `Collective` takes the step, over
the groups that a run trains with. From theta 0, replica r is put at r / g, where g is what the
first step of the configured outer optimiser makes of a mean of 1:

    nesterov   m = d,  u = (d + momentum * m) * lr     g = lr * (1 + momentum): 1.33 for 0.7, 0.9
    sgd        u = d * lr                              g = lr; with 1 it is federated averaging

so that every optimiser moves theta to the mean of 0 .. k-1: 0.5000 for k = 2, 1.5000 for k = 4.
With nesterov 0.7 / 0.9 the deltas are 0, -0.7519, and for k = 4 also -1.5038 and -2.2556. The bits
are those of the pinned arithmetic, worked out here in NumPy. The parameter has 7 rows, which no
number of ranks but 7 divides. Deltas travel as they are and none is clipped: what a codec or a clip
makes of them is no known place.
"""

import os
from collections.abc import Iterator

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pww.clock import Clock
from pww.config.one_replica import of_one
from pww.config.schema import Config
from pww.config.schema.outer import Outer
from pww.replica.collective import Collective
from pww.replica.groups import Allocation
from pww.replica.live import pieces
from pww.smoke.book import Check
from pww.smoke.reduce import device_of
from pww.smoke.tell import complaints
from pww.trainer import place as places

ROWS, WIDTH = 7, 3


def checks(config: Config, place: Allocation, *, clock: Clock) -> Iterator[Check]:
    """Collective: both, or why neither was checked."""
    k = config.diloco.replicas
    if k == 1:
        yield Check("outer step", "unchecked", "one replica: there is none between its ranks")
        return
    told = complaints(place.across, misplaced(config, place))
    if told:
        yield Check("groups", "wrong", told)
        return  # a step over wrong groups may wait for ever
    size = place.blocks.size
    yield Check("groups", "right", f"{k} replicas of {size} rank(s); rank j meets rank j of each")
    found = moved(config, place, clock=clock)
    wanted = expected(config.diloco.outer, replicas=k)
    wrong = f"has it at {_stray(found, wanted):.9g}" if np.any(found != wanted) else ""
    told = complaints(place.across, wrong)
    outer, kind = config.diloco.outer, config.parallel.kind
    how = f"{outer.optimizer} lr {outer.lr:g} momentum {outer.momentum:g}, {kind}"
    if told:
        yield Check(
            "outer step", "wrong",
            f"{told}, and {wanted:.9g} is where the step puts a known parameter ({how})",
        )  # fmt: skip
    else:
        yield Check(
            "outer step", "right", f"a known parameter moved by {float(wanted):.4f} ({how})",
            {"moved": float(wanted)},
        )  # fmt: skip


def misplaced(config: Config, place: Allocation) -> str:
    """Collective: whom this rank really meets, against the layout; "" if it is as it should be.

    Counted from what started the ranks, not from the groups' own idea of their order.
    """
    rank, world = places.found(os.environ).rank, config.parallel.ranks
    size = world // config.diloco.replicas
    first = rank - rank % size
    own = torch.zeros(size, dtype=torch.int64, device=device_of(config))
    own[place.ranks.rank] = rank
    dist.all_reduce(own)
    wanted = {
        "all ranks": list(range(world)),
        "its replica": list(range(first, first + size)),
        "its place in the replicas": list(range(rank % size, world, size)),
        "its replica's gradients": list(range(first, first + size)),
    }
    met = {
        "all ranks": _ranks(place.across.numbers(float(rank))),
        "its replica": _ranks(place.inner.numbers(float(rank))),
        "its place in the replicas": _ranks(place.outer.numbers(float(rank))),
        "its replica's gradients": own.tolist(),
    }
    for name, ranks in wanted.items():
        if met[name] != ranks:
            return f"meets ranks {met[name]} for {name}, and these are {ranks}"
    return ""


def _ranks(rows: list[list[float]]) -> list[int]:
    return [int(one) for (one,) in rows]


def moved(config: Config, place: Allocation, *, clock: Clock) -> "np.ndarray":
    """Collective: where this rank's part of the known parameter is after one outer step."""
    model = nn.Module()
    model.known = nn.Parameter(torch.zeros(ROWS, WIDTH, device=device_of(config)))
    _share(model, of_one(config))
    outer = config.diloco.outer
    collective = Collective(
        model, inner=place.inner, outer=place.outer, clock=clock,
        diloco=config.diloco.model_copy(update={"norm_clip": 0.0}),
        device=torch.device("cpu") if outer.device == "cpu" else None,
    )  # fmt: skip
    (piece,) = pieces(model, ranks=place.inner.size)
    piece.values.fill_(float(_inner(outer, place.replica)))
    collective.step(1)
    (piece,) = pieces(model, ranks=place.inner.size)
    found: np.ndarray = piece.values.cpu().numpy().copy()
    return found


def _share(model: nn.Module, config: Config) -> None:
    """As the engines do it with a model: whole on every rank, or sharded."""
    kind, world = config.parallel.kind, config.parallel.ranks
    device = device_of(config).type
    if world == 1 or kind in ("single", "ddp"):
        return
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh(device, (world,)))
        return
    shard = config.parallel.shard_ranks
    names = ("copies", "shards")
    mesh = init_device_mesh(device, (world // shard, shard), mesh_dim_names=names)
    fully_shard(model, mesh=mesh)


def gain(outer: Outer) -> float:
    """What the first step of a full phase makes of a mean of 1."""
    return outer.lr * (1 + outer.momentum) if outer.optimizer == "nesterov" else outer.lr


def _inner(outer: Outer, replica: int) -> np.float32:
    return np.float32(replica / gain(outer))


def expected(outer: Outer, *, replicas: int) -> np.float32:
    """(k - 1) / 2 as the pinned arithmetic has it, every line rounded to fp32."""
    zero, share = np.float32(0), np.float32(1 / replicas)
    lr, b = np.float32(outer.lr), np.float32(outer.momentum)
    if outer.optimizer == "sgd":
        b = zero
    mean = (zero - _inner(outer, 0)) * share
    for replica in range(1, replicas):
        mean = mean + (zero - _inner(outer, replica)) * share
    momentum = zero * b + mean
    theta: np.float32 = zero - (mean + momentum * b) * lr
    return theta


def _stray(found: "np.ndarray", wanted: np.float32) -> float:
    """The first that is not there."""
    return float(found[found != wanted][0])
