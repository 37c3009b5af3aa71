"""Muon for matrices that are sharded: the same steps on any number of ranks.

Making a step orthogonal needs the whole matrix, of which FSDP leaves each rank some rows. So the
ranks take turns: of as many matrices as there are shards each is gathered, made orthogonal by one
rank, and its rows are dealt out again. torch's own Muon sees matrices as DTensors and would do
every product of the iteration by collectives.

Source: K. Jordan, "Muon: an optimizer for hidden layers in neural networks"; the scale of a step is
that of "Muon is scalable for LLM training", arXiv 2502.16982, equation 4: AdamW's rates fit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: the steepest at 0 that still ends near 1."""
SMALLEST_NORM = 1e-7


class ShardedMuon(Optimizer):
    """Momentum (Nesterov's form), made orthogonal, with decoupled weight decay."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        iterations: int = 5,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "iterations": iterations,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of every matrix that has a gradient. Collective if they are sharded."""
        assert closure is None, "nobody evaluates the loss again here"
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            for turn in _turns(given):
                updates = [self._momentum(p, group["momentum"]) for p in turn]
                ways = _orthogonal(updates, iterations=group["iterations"])
                for p, way in zip(turn, ways, strict=True):
                    local = p.to_local() if isinstance(p, DTensor) else p
                    local.mul_(1 - group["lr"] * group["weight_decay"])
                    local.add_(way, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))

    def _momentum(self, p: torch.Tensor, decay: float) -> torch.Tensor:
        """Where momentum and gradient point together; the momentum moves on."""
        state, grad = self.state[p], p.grad
        assert grad is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer: torch.Tensor = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - decay)
        return grad.lerp(buffer, decay)


def orthogonal(matrix: torch.Tensor, *, iterations: int) -> torch.Tensor:
    """The nearest orthogonal matrix to one of full rank, roughly, in bf16: U S V^T with S near 1.

    Newton-Schulz: an odd polynomial of the matrix moves every singular value and no direction.
    """
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16()
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.T  # the smaller of the two Gram matrices
    x = x / x.norm().clamp(min=SMALLEST_NORM)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.T


def _orthogonal(updates: Sequence[torch.Tensor], *, iterations: int) -> Iterator[torch.Tensor]:
    """Collective: this rank's rows of each update made orthogonal; at most one update a shard."""
    if not isinstance(updates[0], DTensor):
        for update in updates:
            yield orthogonal(update, iterations=iterations)
        return
    mesh = _shards(updates[0])
    wholes = [update.full_tensor() for update in updates if isinstance(update, DTensor)]
    rank = mesh.get_local_rank()
    for owner, whole in enumerate(wholes):
        mine = orthogonal(whole, iterations=iterations) if owner == rank else None
        wholes[owner] = torch.empty_like(whole, dtype=torch.bfloat16) if mine is None else mine
    for owner, whole in enumerate(wholes):
        rows = distribute_tensor(whole.contiguous(), mesh, [Shard(0)], src_data_rank=owner)
        yield rows.to_local()


def _shards(tensor: DTensor) -> DeviceMesh:
    """The part of the mesh over which rows are cut; copies do the same work beside each other."""
    mesh, placements = tensor.device_mesh, tensor.placements
    cut = [i for i, placement in enumerate(placements) if placement == Shard(0)]
    others = [p for i, p in enumerate(placements) if i not in cut]
    assert len(cut) == 1, f"{placements}: FSDP cuts rows over one dimension of the mesh"
    assert all(p == Replicate() for p in others), f"{placements}: FSDP copies over the others"
    if mesh.ndim == 1:
        return mesh
    assert mesh.mesh_dim_names is not None, "FSDP's meshes have names"
    return mesh[mesh.mesh_dim_names[cut[0]]]


def _turns(params: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """As many matrices at a time as there are shards, in the order of the model."""
    rest = iter(params)
    first = next(iter(params), None)
    size = _shards(first).size() if isinstance(first, DTensor) else 1
    while turn := list(islice(rest, size)):
        yield turn
