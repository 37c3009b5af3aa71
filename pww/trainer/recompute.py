"""Activation checkpointing of a network with BatchNorm: blocks forget what they computed, and
compute it again in the backward pass, without counting the batch twice.

Torch runs such a block's forward a second time, in which BatchNorm would move its running
statistics once more; in that pass it moves copies. Normalisation is by the batch in both,
so gradients are the same.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Each block keeps its inputs alone between the passes. Names and state stay as they are."""
    for block in blocks:
        block.forward = partial(_forgetful, block, block.forward)


def _forgetful(block: nn.Module, forward: Any, x: torch.Tensor) -> Any:
    if not torch.is_grad_enabled():
        return forward(x)

    def passes() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _uncounted(block)

    return checkpoint(forward, x, use_reentrant=False, context_fn=passes)


@contextmanager
def _uncounted(block: nn.Module) -> Iterator[None]:
    """Inside, what the block's norms move is a copy of their running statistics."""
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    kept = [dict(norm._buffers) for norm in norms]
    try:
        for norm in norms:
            for name, buffer in norm.named_buffers(recurse=False):
                norm._buffers[name] = buffer.clone()
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
