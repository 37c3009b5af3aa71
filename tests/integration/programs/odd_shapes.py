"""Parameters that no number of ranks divides, through everything that moves a replica's tensors.

Called in every rank by `trainer_laws.py`; rank 0 leaves FOLDER/odd<world>.pt.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor

from pww.outer import outer_step_
from pww.trainer import inner_state, shards
from pww.trainer.ranks import Ranks

SHAPES = {"0.seven": (7, 3), "0.two": (2, 5), "0.one": (1, 4), "0.norm": (7,)}
UPDATES = 1000


def values(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name.removeprefix("0."), nn.Parameter(torch.zeros(shape)))


def run(folder: Path, optim: Any) -> None:
    """Load, three steps of Muon and AdamW, gather, outer step, load, save and load again."""
    from pww.trainer.titan_optim import Optimizers, optimizers

    ranks = Ranks()
    out: dict[str, Any] = {}
    model = nn.Sequential(Layer())
    mesh = init_device_mesh("cpu", (ranks.world,), mesh_dim_names=("fsdp",))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    path = folder / f"odd{ranks.world}.safetensors"

    def load(theta: dict[str, torch.Tensor]) -> None:
        if ranks.rank == 0:
            save_file(theta, path)
        ranks.local(lambda: None)  # nobody loads before it is there
        shards.load(path, model, ranks=ranks)

    def gathered() -> dict[str, torch.Tensor]:
        keep = ranks.rank == 0
        return {n: shards.gather(p, keep=keep) for n, p in shards.parameters(model)}

    theta = values(1)
    load(theta)
    out["loaded"] = gathered()
    config: Optimizers.Config = optimizers(optim)
    container = config.build(model_parts=[model])
    for step in range(3):
        grads = values(10 + step)
        for name, p in shards.parameters(model):
            p.grad = distribute_tensor(grads[name], mesh, p.placements, src_data_rank=None)
        container.step()
    out["stepped"] = gathered()
    if ranks.rank == 0:
        momentum = {n: torch.zeros_like(t) for n, t in theta.items()}
        for name, after in out["stepped"].items():
            delta = theta[name] - after
            outer_step_(
                theta[name], momentum[name], delta, lr=0.7, momentum_factor=0.9, partial=False
            )
    load(theta)
    out["outer"] = gathered()
    inner_state.save(folder / f"odd{ranks.world}.inner", container, step=3, ranks=ranks)
    inner_state.reset(container)
    inner_state.load(folder / "odd1.inner", container, ranks=ranks)
    flat = container.state_dict()
    names = [n for n in flat if n.startswith("state.") and not n.endswith(".step")]
    out["state"] = {
        n: flat[n].full_tensor() if hasattr(flat[n], "full_tensor") else flat[n] for n in names
    }
    if ranks.rank == 0:
        torch.save(out, folder / f"odd{ranks.world}.pt")
    if ranks.world == 1:
        many_updates(model, folder, ranks)
    ranks.close()


def many_updates(model: nn.Module, folder: Path, ranks: Ranks) -> None:
    """1000 outer steps of 1e-3 from 0, each written to a model that computes in bf16."""
    (parameter, *_) = [p for _, p in shards.parameters(model)]
    shards.scatter(parameter, torch.zeros(7, 3) if ranks.rank == 0 else None)
    momentum, delta = torch.zeros(7, 3), torch.full((7, 3), -1e-3)
    for _ in range(UPDATES):
        theta = shards.gather(parameter, keep=ranks.rank == 0)
        if ranks.rank == 0:
            outer_step_(theta, momentum, delta, lr=1.0, momentum_factor=0.0, partial=False)
        shards.scatter(parameter, theta if ranks.rank == 0 else None)
    total = shards.gather(parameter, keep=ranks.rank == 0)
    if ranks.rank == 0:
        torch.save(total, folder / "updates.pt")


def control() -> float:
    """The same sum where a bf16 tensor holds it."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(UPDATES):
        total += 1e-3
    return float(total)
