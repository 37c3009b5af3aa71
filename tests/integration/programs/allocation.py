"""What the programs about one allocation share: this rank's place, tiny models, exact descent.

Numbers are dyadic, so that no order of a sum matters where a law is checked to the bit.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pww.clock import SystemClock
from pww.config import schema
from pww.replica.blocks import Blocks
from pww.replica.circle import Circle
from pww.replica.collective import Collective
from pww.replica.live import pieces

CPU = torch.device("cpu")
ROWS, WIDTH, BATCH, LR = 7, 3, 16, 0.25


def diloco(optimizer: str = "sgd", lr: float = 1.0, momentum: float = 0.0) -> schema.Diloco:
    outer = schema.Outer(optimizer=optimizer, lr=lr, momentum=momentum, solo_full_step=False)
    return schema.Diloco(
        replicas=1, inner_steps=1, phase="fixed", overlap=False, outer=outer, staleness_window=2,
        staleness_discount=0.25, norm_clip=0.0, quorum=0.5, grace=0.1,
    )  # fmt: skip


class Here:
    """This rank in an allocation of k replicas."""

    def __init__(self, replicas: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.blocks = Blocks.of(self.world, replicas=replicas)
        size = self.blocks.size
        self.replicas = [list(range(r * size, (r + 1) * size)) for r in range(replicas)]
        self.inner = self.circle(self.replicas)
        self.outer = self.circle([list(range(j, self.world, size)) for j in range(size)])
        self.replica = self.blocks.replica(self.rank)

    def circle(self, groups: list[list[int]]) -> Circle:
        """This rank's of these; collective over all ranks."""
        here = None
        for ranks in groups:  # every rank makes every group, in the same order
            group = dist.new_group(ranks, backend="gloo") if len(ranks) > 1 else None
            if self.rank in ranks:
                here = group
        return Circle(here, device=CPU)

    def shared(self, model: nn.Module, kind: str) -> nn.Module:
        """The model as the ranks of this replica share it."""
        mine = next(ranks for ranks in self.replicas if self.rank in ranks)
        if kind == "fsdp":
            for_all = DeviceMesh("cpu", self.replicas, mesh_dim_names=("outer", "inner"))
            fully_shard(model, mesh=for_all["inner"])
        elif kind == "hsdp":  # two copies, each sharded over half of the replica's ranks
            cube = torch.tensor(self.replicas).view(self.blocks.replicas, 2, -1)
            names = ("outer", "copies", "shards")
            for_all = DeviceMesh("cpu", cube, mesh_dim_names=names)
            fully_shard(model, mesh=for_all["copies", "shards"])
        elif kind == "ddp" and len(mine) > 1:
            groups = [dist.new_group(ranks, backend="gloo") for ranks in self.replicas]
            model = DistributedDataParallel(model, process_group=groups[self.replica])
        return model

    def collective(self, model: nn.Module, **how: object) -> Collective:
        how = {"diloco": diloco(), "clock": SystemClock(), **how}
        return Collective(model, inner=self.inner, outer=self.outer, **how)  # type: ignore[arg-type]


def linear(seed: int, dtype: torch.dtype = torch.float64) -> nn.Linear:
    """Quarters, so that a few steps of gradient descent are exact."""
    made = torch.Generator().manual_seed(seed)
    layer = nn.Linear(WIDTH, ROWS, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-8, 9, parameter.shape, generator=made) / 4)
    return layer


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1000 + step)
    x = torch.randint(-1, 2, (BATCH, WIDTH), generator=made).double()
    return x, torch.randint(-2, 3, (BATCH, ROWS), generator=made).double()


def descend(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step of plain SGD on a mean over the rows given; ranks average their gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    (0.5 * (model(x) - y).square().sum() / len(x)).backward()
    optimizer.step()


def plain(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def whole(model: nn.Module) -> list[torch.Tensor]:
    found = []
    for parameter in plain(model).parameters():
        own = parameter.detach()
        found.append(own.full_tensor() if hasattr(own, "full_tensor") else own.clone())
    return found


def equal(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other), (one - other).abs().max()


def shift(model: nn.Module, by: float) -> None:
    for piece in pieces(model, ranks=1):
        piece.values.sub_(by)


def one_value(value: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = nn.Module()
    model.w = nn.Parameter(torch.full((1,), value, dtype=dtype))
    return model
