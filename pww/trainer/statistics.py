"""Running statistics of BatchNorm: the same on all ranks of a replica, or estimated anew."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from pww.trainer.ranks import Ranks
from pww.trainer.shards import buffers, parameters

MAX = dist.ReduceOp.MAX


@torch.no_grad()
def agreed_buffers(model: nn.Module, *, ranks: Ranks) -> None:
    """Collective: floats become the ranks' mean, in fp64 and rounded once, integers the largest.

    Each rank has seen its own part of every batch.
    """
    if ranks.group is None:
        return
    kinds: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for _, buffer in buffers(model):
        kinds[buffer.is_floating_point()].append(buffer)
    for is_float, found in kinds.items():
        if not found:
            continue
        # all at once: a network of twenty such layers has sixty small ones
        dtype, how = (torch.float64, dist.ReduceOp.SUM) if is_float else (torch.int64, MAX)
        flat = torch.cat([buffer.reshape(-1).to("cpu", dtype) for buffer in found])
        dist.all_reduce(flat, op=how, group=ranks.group)
        if is_float:
            flat /= ranks.world
        parts = torch.split(flat, [buffer.numel() for buffer in found])
        for buffer, part in zip(found, parts, strict=True):
            buffer.copy_(part.view(buffer.shape))


@torch.no_grad()
def snapshot(model: nn.Module) -> list[torch.Tensor]:
    """Copies of all buffers that are state, for `restore`."""
    return [buffer.clone() for _, buffer in buffers(model)]


@torch.no_grad()
def restore(model: nn.Module, kept: Sequence[torch.Tensor]) -> None:
    """The buffers are again what they were at `snapshot`."""
    for (_, buffer), before in zip(buffers(model), kept, strict=True):
        buffer.copy_(before)


@torch.no_grad()
def are_finite(model: nn.Module, *, ranks: Ranks) -> bool:
    """Collective: whether no buffer went to nan or inf, from which a running mean never comes back,
    and no parameter: then the buffers may be as far off, and finite by chance.
    """
    fine = all(bool(torch.isfinite(buffer).all()) for _, buffer in buffers(model))
    for _, parameter in parameters(model):
        own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if own.numel():  # of fewer rows than ranks some ranks have none
            least, most = own.aminmax()  # nan if one is; a fifth of the time of asking each
            fine = fine and math.isfinite(least) and math.isfinite(most)
    return not ranks.most(int(not fine))


@contextmanager
def recalibrated(
    model: nn.Module,
    batches: Iterable[torch.Tensor],
    *,
    ranks: Ranks,
    cast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[None]:
    """Collective: inside, statistics are the plain means over `batches` at the present weights.

    Afterwards they are what they were. Every rank brings as many batches. `cast` makes the
    precision that the model is used in.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    kept = snapshot(model)
    momenta = [norm.momentum for norm in norms]
    was = model.training
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over batches
        model.train()
        with torch.no_grad(), cast():
            for batch in batches:
                model(batch)
        agreed_buffers(model, ranks=ranks)
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        restore(model, kept)
        model.train(was)
