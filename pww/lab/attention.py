"""Torch's attention under `vmap`: all workers' in one call, where vmap would make a call for each.

torch 2.13 has no batching rule for its attention on CPUs. Attention knows nothing of parameters, so
M workers of B windows are M B windows to it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode


class AllAtOnce(TorchFunctionMode):
    """Inside, attention that is called under `vmap` folds the workers into the windows."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Every function of torch that is called inside, and that one otherwise."""
        options = dict(kwargs or {})
        if func is not scaled_dot_product_attention:
            return func(*args, **options)
        query, key, value = args
        mask = options.pop("attn_mask", None)
        return _Folded.apply(query, key, value, mask, options)  # type: ignore[no-untyped-call]


class _Folded(torch.autograd.Function):
    """Attention whose rule for `vmap` is itself, of more windows."""

    @staticmethod
    def forward(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Of one worker."""
        return scaled_dot_product_attention(query, key, value, mask, **options)

    @staticmethod
    def setup_context(ctx: Any, inputs: object, output: object) -> None:
        """Nothing is kept: gradients go through what `vmap` calls."""

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> tuple[torch.Tensor, int]:
        """Of all workers; a mask of one window's is every window's."""
        workers: int = info.batch_size

        def stacked(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
            if dim is None:
                return tensor.expand(workers, *tensor.shape)
            return tensor.movedim(dim, 0)

        query, key, value = (
            stacked(tensor, dim) for tensor, dim in zip((query, key, value), dims, strict=False)
        )
        if mask is not None:
            mask = stacked(mask, dims[3])
            while mask.dim() < query.dim():  # torch puts what is missing in front
                mask = mask.unsqueeze(1)
            mask = mask.expand(workers, query.shape[1], *mask.shape[2:]).flatten(0, 1)
        found = scaled_dot_product_attention(
            query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), mask, **options
        )
        return found.view(workers, -1, *found.shape[1:]), 0
