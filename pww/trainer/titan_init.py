"""Initial weights that do not depend on the number of ranks: drawn whole everywhere, then cut.

On a CPU, DTensor draws each shard from the one seed, and all ranks would get the same rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

INIT_STD = 0.02


def whole(draw: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], None]:
    """An initialiser that draws the full tensor on every rank and keeps this rank's part."""

    def init(tensor: torch.Tensor) -> None:
        if not isinstance(tensor, DTensor):
            draw(tensor)
            return
        local = tensor.to_local()
        full = torch.empty(tensor.shape, dtype=local.dtype, device=local.device)
        draw(full)
        # src_data_rank=None: every rank cuts its own copy, nothing travels.
        cut = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
        local.copy_(cut.to_local())

    return init


Inits = dict[str, Callable[[torch.Tensor], Any]]
LINEAR: Inits = {"weight": whole(partial(nn.init.normal_, std=INIT_STD)), "bias": nn.init.zeros_}
"""What torchtitan gives every matrix of a Qwen3."""
NORM: Inits = {"weight": nn.init.ones_}


def truncated(std: float, *, limit: float = 2.0) -> Inits:
    """A normal distribution without its tails beyond `limit`."""
    draw = whole(partial(nn.init.trunc_normal_, std=std, a=-limit, b=limit))
    return {"weight": draw, "bias": nn.init.zeros_}
