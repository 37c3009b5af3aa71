"""A small GPT on characters, many of them at once: one vectorised pass for all workers.

Parameters are stacked, `(M, ...)` for M workers; every matrix product is one batched product, and
nothing of a worker reaches another. Pre-norm without learnt gains, learnt positions, tied output.

    parameters = (96 + T) d + 12 L d^2          toy 5,376 · 413k 413,696 · 915k 915,456

Shapes: M workers, B windows, T positions, V characters, D model, H heads.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from pww.lab.text import VOCABULARY

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape of one worker's."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a model measures."""

    dim: int
    layers: int
    heads: int
    context: int  # positions of a window

    @property
    def shapes(self) -> Shapes:
        """Every tensor of one model, in the order in which they are used."""
        d = self.dim
        found: Shapes = {"embed": (len(VOCABULARY), d), "positions": (self.context, d)}
        for i in range(self.layers):
            for part in ("query", "key", "value", "out"):
                found[f"layers.{i}.{part}"] = (d, d)
            found[f"layers.{i}.up"] = (d, 4 * d)
            found[f"layers.{i}.down"] = (4 * d, d)
        return found

    @property
    def parameters(self) -> int:
        """Parameters of one model."""
        return sum(math.prod(shape) for shape in self.shapes.values())


SIZES = {
    "toy": Size(dim=16, layers=1, heads=2, context=48),
    "413k": Size(dim=128, layers=2, heads=4, context=64),
    "915k": Size(dim=192, layers=2, heads=6, context=64),
}
"""By the name that `task.size` has."""


def initial(size: Size, *, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """One model's parameters: normal, what adds to the residual stream smaller with depth."""
    found = {}
    for name, shape in size.shapes.items():
        std = 0.02 if name in ("embed", "positions") else shape[0] ** -0.5
        if name.endswith((".out", ".down")):
            std /= math.sqrt(2 * size.layers)
        found[name] = torch.randn(shape, generator=generator) * std
    return found


def losses(params: Mapping[str, torch.Tensor], tokens: torch.Tensor, *, size: Size) -> torch.Tensor:
    """Each worker's mean cross entropy (M,) in nats, of `tokens` (M, B, T + 1).

    The sum's gradient by a worker's parameters is that of its own loss alone.
    """
    workers, windows, _ = tokens.shape
    inputs, targets = tokens[:, :, :-1], tokens[:, :, 1:]
    positions = inputs.shape[2]
    # A product with ones and zeros is exact, as fast as a gather, and so is its gradient
    ones = torch.zeros(workers, windows * positions, len(VOCABULARY))
    ones.scatter_(2, inputs.reshape(workers, -1, 1), 1.0)
    x = torch.bmm(ones, params["embed"]).view(workers, windows, positions, -1)
    x = (x + params["positions"][:, None]).view(workers, windows * positions, -1)
    for i in range(size.layers):
        mixed = _attention(params, f"layers.{i}", _norm(x), windows=windows, size=size)
        x = torch.baddbmm(x, mixed, params[f"layers.{i}.out"])
        up = torch.bmm(_norm(x), params[f"layers.{i}.up"])
        x = torch.baddbmm(x, functional.relu(up), params[f"layers.{i}.down"])
    logits = torch.bmm(_norm(x), params["embed"].transpose(1, 2))
    each = functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="none"
    )
    return each.view(workers, -1).mean(1)


def _attention(
    params: Mapping[str, torch.Tensor], layer: str, x: torch.Tensor, *, windows: int, size: Size
) -> torch.Tensor:
    """What each position takes from those up to itself: (M, B T, D)."""
    workers, _, dim = x.shape
    query, key, value = (
        torch.bmm(x, params[f"{layer}.{part}"])
        .view(workers * windows, -1, size.heads, dim // size.heads)
        .transpose(1, 2)
        for part in ("query", "key", "value")
    )
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed.transpose(1, 2).reshape(workers, -1, dim)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])
