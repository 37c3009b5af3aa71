"""Sharded parameters as whole tensors, one at a time: gathered for the delta, scattered from theta.

No rank ever holds a second model: the extra memory is one tensor (the largest is the embedding).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from pww.errors import PayloadError, PwwError
from pww.trainer.ranks import Ranks
from pww.transport.tensorfile import TensorReader

NAMES_SHOWN = 5
WRAPPED = "_checkpoint_wrapped_module."
"""What activation checkpointing puts into the names below a layer."""


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every parameter once (tied ones under their first name), in the model's order.

    A layer that is checkpointed keeps its parameters' names.
    """
    for name, parameter in model.named_parameters():
        yield name.replace(WRAPPED, ""), parameter


def buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every buffer that belongs to the model's state, once, in its order.

    What a model computes itself (rotary tables, which are not persistent) is no state.
    """
    kept = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in kept:
            yield name.replace(WRAPPED, ""), buffer


def reshard(model: nn.Module) -> None:
    """Gives every FSDP unit back its shards.

    A forward pass without a backward leaves some unsharded, and a write to an unsharded parameter
    does not reach the master weights.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@torch.no_grad()
def gather(parameter: nn.Parameter, *, keep: bool) -> torch.Tensor:
    """Collective: a private fp32 copy where the parameter lives if `keep`, else an empty tensor."""
    own = parameter.detach()
    full = own.full_tensor() if isinstance(own, DTensor) else own
    if not keep:
        return torch.empty(0)
    copied = full.to(torch.float32)
    local = own.to_local() if isinstance(own, DTensor) else own
    # A mesh of one hands out the shard itself, which training would change under the reader.
    return copied.clone() if copied.data_ptr() == local.data_ptr() else copied


@torch.no_grad()
def scatter(parameter: nn.Parameter, full: torch.Tensor | None) -> None:
    """Collective: writes rank 0's `full` into the shards, in place. Other ranks give None."""
    if not isinstance(parameter, DTensor):  # every rank holds all of it
        if full is not None:
            parameter.copy_(full)
        if dist.get_world_size() > 1:
            dist.broadcast(parameter.detach(), src=0)
        return
    local = parameter.to_local()
    whole = torch.empty(parameter.shape, dtype=local.dtype, device=local.device)
    if full is not None:
        whole.copy_(full)
    new = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=0)
    local.copy_(new.to_local())


def load(theta: Path, model: nn.Module, *, ranks: Ranks) -> None:
    """Collective: the safetensors file `theta`, read on rank 0 only, into the shards.

    Raises:
        PayloadError: on every rank, if names, shapes or dtypes differ or the file cannot be read.
    """
    reshard(model)
    named = dict(parameters(model))
    shapes = {name: tuple(p.shape) for name, p in named.items()}
    with ExitStack() as stack:
        reader: TensorReader | None = None
        fault: PwwError | None = None
        if ranks.rank == 0:
            try:
                reader = stack.enter_context(TensorReader(theta))
                _check(reader, theta, shapes)
            except PayloadError as wrong:
                fault = wrong
        ranks.agree_on_fault(fault)
        sharded = any(isinstance(module, FSDPModule) for module in model.modules())
        for name, parameter in named.items():
            assert not sharded or isinstance(parameter, DTensor), "reshard() comes before a write"
            full, fault = None, None
            if reader is not None:
                try:
                    full = reader.get(name)
                except PayloadError as wrong:
                    fault = wrong
            ranks.agree_on_fault(fault)  # a torn file must not leave the others in the scatter
            scatter(parameter, full)


def _check(reader: TensorReader, theta: Path, expected: Mapping[str, Sequence[int]]) -> None:
    """Raises PayloadError unless exactly these tensors are in the file, all fp32."""
    wrong = []
    if missing := [name for name in expected if name not in reader.names]:
        wrong.append(f"missing {_shown(missing)}")
    if extra := [name for name in reader.names if name not in expected]:
        wrong.append(f"unknown {_shown(extra)}")
    for name in reader.names:
        if name not in expected:
            continue
        shape, dtype = reader.shape(name), reader.dtype(name)
        if shape != tuple(expected[name]):
            wrong.append(f"{name} has shape {shape}, here it is {tuple(expected[name])}")
        if dtype != torch.float32:
            wrong.append(f"{name} is {dtype}, must be torch.float32")
    if wrong:
        raise PayloadError(
            f"{theta} does not fit the model: {'; '.join(wrong[:NAMES_SHOWN])}; all replicas need "
            "the same model config and tokenizer"
        )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
