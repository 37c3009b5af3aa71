"""Outer optimisers behind one method: theta and momentum move by the merged Delta."""

from typing import Protocol, assert_never

import torch

from pww.config import schema
from pww.outer.step import outer_step_


class OuterOptimizer(Protocol):
    """Descends the merged pseudo-gradient."""

    def step(
        self, theta: torch.Tensor, momentum: torch.Tensor, delta: torch.Tensor, *, partial: bool
    ) -> None:
        """Updates `theta` and `momentum` in place; `delta` is only read."""


class Nesterov:
    """SGD with Nesterov momentum.

    Algebraically FedMom: `v' = w - lr * (w - w_avg)`, `w' = v' + momentum * (v' - v)`.
    Source: DiLoCo, arXiv 2311.08105, algorithm 1 (lr 0.7, momentum 0.9).
    """

    def __init__(self, *, lr: float, momentum: float) -> None:
        self._lr, self._momentum = lr, momentum

    def step(
        self, theta: torch.Tensor, momentum: torch.Tensor, delta: torch.Tensor, *, partial: bool
    ) -> None:
        """One pinned outer step; a partial phase uses momentum 0 and leaves the buffer."""
        outer_step_(
            theta, momentum, delta,
            lr=self._lr, momentum_factor=self._momentum, partial=partial,
        )  # fmt: skip


class Sgd:
    """Plain descent; with lr 1 it is FedAvg. The momentum buffer is not touched."""

    def __init__(self, *, lr: float) -> None:
        self._lr = lr

    def step(
        self, theta: torch.Tensor, momentum: torch.Tensor, delta: torch.Tensor, *, partial: bool
    ) -> None:
        """The pinned outer step with momentum 0, whatever the phase's length."""
        outer_step_(theta, momentum, delta, lr=self._lr, momentum_factor=0.0, partial=True)


def get_optimizer(outer: schema.Outer, *, contributors: int) -> OuterOptimizer:
    """The optimiser of a configuration, for a round to which that many replicas contribute.

    With `solo_full_step` a lone replica's round has learning rate 1: what it learnt is taken over
    whole (with momentum on top), instead of the share that a mean of several is given.
    """
    lr = 1.0 if outer.solo_full_step and contributors == 1 else outer.lr
    match outer.optimizer:
        case "nesterov":
            return Nesterov(lr=lr, momentum=outer.momentum)
        case "sgd":
            return Sgd(lr=lr)
        case _:
            assert_never(outer.optimizer)
