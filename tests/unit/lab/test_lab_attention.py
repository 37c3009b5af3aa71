"""Attention of all workers in one call, against a call for each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import vmap
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from pww.lab.attention import AllAtOnce


class Counted(TorchDispatchMode):
    """Notes the windows of every call of attention that reaches the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[int] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "_scaled_dot_product" in str(func):
            self.windows.append(len(args[0]))
        return func(*args, **(kwargs or {}))


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parts(heads: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three workers, two windows, five positions, heads of 8; keys and values of 2 heads."""
    query, key, value = (
        drawn(3, 2, count, 5, 8, seed=seed) for seed, count in enumerate((heads, 2, 2))
    )
    return query, key, value


MASK = torch.ones(5, 5, dtype=torch.bool).tril().logical_and(torch.ones(5, 5).triu(-2).bool())
CASES: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "scaled": {"is_causal": True, "scale": 0.3},
    "a mask for all windows": {"attn_mask": MASK[None, None]},
    "a mask of two dimensions": {"attn_mask": MASK},
    "a mask of three": {"attn_mask": MASK[None]},
}


@pytest.mark.parametrize("name", CASES)
def test_all_at_once_is_one_by_one(name: str) -> None:
    options = {"enable_gqa": True, **CASES[name]}
    query, key, value = (one.requires_grad_() for one in parts())

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, **options)

    with Counted() as counted, AllAtOnce():
        found = vmap(attend)(query, key, value)
    assert counted.windows == [6]
    grads = torch.autograd.grad(found.square().sum(), (query, key, value))
    each = torch.stack([attend(*one) for one in zip(query, key, value, strict=True)])
    torch.testing.assert_close(found, each)
    for one, other in zip(
        grads, torch.autograd.grad(each.square().sum(), (query, key, value)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_what_workers_share_and_what_is_mapped_elsewhere() -> None:
    """A mask of each worker's own, a key that is everybody's, workers in the last dimension."""
    query, key, value = parts(heads=2)
    masks = drawn(3, 1, 1, 5, 5, seed=9)

    def attend(q: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, key[0], v, attn_mask=mask)

    with AllAtOnce():
        found = vmap(attend, in_dims=(0, -1, 0))(query, value.movedim(0, -1), masks)
    each = torch.stack([attend(*one) for one in zip(query, value, masks, strict=True)])
    torch.testing.assert_close(found, each)


def test_outside_a_map_it_is_torch_s() -> None:
    query, key, value = (one[0] for one in parts(heads=2))
    with AllAtOnce():
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(found, scaled_dot_product_attention(query, key, value, is_causal=True))
