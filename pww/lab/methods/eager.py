"""Eager overlap: others' deltas come a round late, a worker's own counts at once.

Every worker has a theta and an outer momentum of its own and steps them by

    merged_{t-1} + (own_t - sent_{t-1}) / M

so that its own delta is in the sum from the first and the others' when they come.
Source: Kale et al., arXiv 2502.12996 (eager updates), algorithm 2.
"""

import torch

from pww.config.schema.lab import DilocoMethod, LabConfig, LabDiloco
from pww.lab.exchange import Exchange, equal
from pww.lab.inner import Inner
from pww.lab.stack import Stack
from pww.lab.traffic import Traffic
from pww.outer import get_optimizer


class Eager:
    """As `Diloco`, with a theta for each worker."""

    def __init__(
        self, config: LabConfig, stack: Stack, method: DilocoMethod, diloco: LabDiloco
    ) -> None:
        self._stack, self._workers = stack, config.workers
        self._inner_steps = diloco.inner_steps
        self._exchange = Exchange(config, stack.shapes, decay=method.feedback_decay)
        self._inner = Inner(config.optim, stack.values, stack.grads)
        self._outer = get_optimizer(diloco.outer, contributors=config.workers)
        self._thetas = stack.values.clone()
        self._momenta = torch.zeros_like(self._thetas)
        self._sent = torch.zeros_like(self._thetas)
        self._merged = torch.zeros_like(self._thetas[0])
        self._steps = 0
        self.rounds = 0

    @property
    def traffic(self) -> Traffic:
        """Bytes of a worker so far."""
        return self._exchange.traffic

    def active(self) -> list[bool]:
        """Everybody, always."""
        return [True] * self._workers

    def theta(self) -> torch.Tensor:
        """The workers' mean."""
        return self._thetas.mean(0)

    def step(self, lr: float) -> None:
        """An inner step; where a phase ends, an outer step of each worker."""
        self._inner.step(lr, active=self.active())
        self._steps += 1
        if self._steps % self._inner_steps:
            return
        names, who = list(self._stack.shapes), range(self._workers)
        deltas = self._thetas - self._stack.values
        sent = self._exchange.fed_back(deltas, round_=self.rounds, who=who, names=names)
        late = self._merged + (deltas - self._sent) / self._workers
        for theta, momentum, delta in zip(self._thetas, self._momenta, late, strict=True):
            self._outer.step(theta, momentum, delta, partial=False)
        self._merged = self._exchange.merged(sent, shares=equal(self._workers), names=names)
        self._sent = sent
        self._stack.values.copy_(self._thetas)
        self.rounds += 1
