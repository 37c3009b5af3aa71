"""Inner optimisers over rows: torch's own, with a state for each worker, and the clip before it."""

from collections.abc import Sequence
from typing import assert_never

import torch

from pww.config.schema.lab import LabOptim


class Inner:
    """Steps the rows of `values` (M, n) by those of `grads`, each with a state of its own."""

    def __init__(self, optim: LabOptim, values: torch.Tensor, grads: torch.Tensor) -> None:
        self._clip = optim.clip_norm
        self._grads = grads
        self._rows = [row.detach().requires_grad_() for row in values]
        self._steps: torch.optim.Optimizer
        match optim.name:
            case "adamw":
                self._steps = torch.optim.AdamW(
                    self._rows, lr=optim.lr, betas=(optim.beta1, optim.beta2),
                    weight_decay=optim.weight_decay, fused=True,
                )  # fmt: skip
            case "sgd":
                self._steps = torch.optim.SGD(
                    self._rows, lr=optim.lr, momentum=optim.momentum,
                    nesterov=optim.momentum > 0, weight_decay=optim.weight_decay, fused=True,
                )  # fmt: skip
                if optim.momentum:  # torch's fused step wants all or none to have one already
                    for row in self._rows:
                        self._steps.state[row]["momentum_buffer"] = torch.zeros_like(row)
            case _:
                assert_never(optim)

    def step(self, lr: float, *, active: Sequence[bool]) -> None:
        """Clips each worker's gradient in place, and steps those that are active."""
        clip_rows_(self._grads, self._clip)
        for group in self._steps.param_groups:
            group["lr"] = lr
        for row, grad, works in zip(self._rows, self._grads, active, strict=True):
            row.grad = grad if works else None
        self._steps.step()


def clip_rows_(rows: torch.Tensor, limit: float) -> None:
    """Brings each row's norm down to `limit`, as torch's `clip_grad_norm_` does."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    rows.mul_((limit / (norms + 1e-6)).clamp_max(1.0))
