"""Gradients exchanged at every step: dense or compressed synchronous training, DGC, and DeMo."""

from collections.abc import Sequence

import torch

from pww.config.schema.lab import DemoMethod, DgcMethod, LabConfig, SyncMethod
from pww.lab.exchange import Exchange, equal
from pww.lab.inner import Inner, clip_rows_
from pww.lab.stack import Stack
from pww.lab.traffic import Traffic


class Shared:
    """One set of parameters, loaded into all workers after each step."""

    def __init__(self, config: LabConfig, stack: Stack, *, decay: float = 1.0) -> None:
        self._stack, self._config = stack, config
        self._exchange = Exchange(config, stack.shapes, decay=decay)
        self._names = list(stack.shapes)
        self._who = range(config.workers)
        self._theta = stack.values[:1].clone()
        self._merged = torch.zeros_like(self._theta)
        self.rounds = 0

    @property
    def traffic(self) -> Traffic:
        """Bytes of a worker so far."""
        return self._exchange.traffic

    def active(self) -> Sequence[bool]:
        """Everybody, always."""
        return [True] * self._config.workers

    def theta(self) -> torch.Tensor:
        """The shared parameters."""
        return self._theta[0]

    def _merge(self, sent: torch.Tensor) -> None:
        """What was sent becomes `_merged`."""
        shares = equal(self._config.workers)
        self._merged[0] = self._exchange.merged(sent, shares=shares, names=self._names)
        self.rounds += 1


class Sync(Shared):
    """Averaged gradients, one optimiser; with a lossy codec the residual is of gradients."""

    def __init__(self, config: LabConfig, stack: Stack, method: SyncMethod) -> None:
        super().__init__(config, stack, decay=method.feedback_decay)
        self._inner = Inner(config.optim, self._theta, self._merged)

    def step(self, lr: float) -> None:
        """Exchange, then one step of the optimiser."""
        grads = self._stack.grads
        self._merge(
            self._exchange.fed_back(grads, round_=self.rounds, who=self._who, names=self._names)
        )
        self._inner.step(lr, active=[True])
        self._stack.load(self._theta[0])


class Dgc(Shared):
    """Deep gradient compression: momentum is each worker's, and corrected for what waits.

    u = m u + g;  v = v + u;  the largest of v are sent, and u and v forgotten there. Each of M
    workers clips its g to `clip_norm / sqrt(M)`, before it is accumulated.
    Source: Lin et al., arXiv 1712.01887, section 3.
    """

    def __init__(self, config: LabConfig, stack: Stack, method: DgcMethod) -> None:
        super().__init__(config, stack)
        self._factor = method.momentum
        self._clip = config.optim.clip_norm / config.workers**0.5
        self._momentum = torch.zeros_like(stack.values)
        self._waiting = torch.zeros_like(stack.values)

    def step(self, lr: float) -> None:
        """Exchange, then a plain step along the average."""
        clip_rows_(self._stack.grads, self._clip)
        self._momentum.mul_(self._factor).add_(self._stack.grads)
        self._waiting.add_(self._momentum)
        own, sent = self._exchange.coded(
            self._waiting, round_=self.rounds, who=self._who, names=self._names
        )
        # What few bits lost of a value stays with it
        self._waiting.sub_(own)
        self._momentum.masked_fill_(own != 0, 0.0)
        self._merge(sent)
        self._theta.sub_(self._merged * lr)
        self._stack.load(self._theta[0])


class Demo(Shared):
    """Decoupled momentum: its largest cosine coefficients are sent, and are no longer in it.

    Source: Peng et al., arXiv 2411.19870, algorithm 1, with the step by the sign.
    """

    def __init__(self, config: LabConfig, stack: Stack, method: DemoMethod) -> None:
        super().__init__(config, stack)
        self._factor = method.momentum
        self._momentum = torch.zeros_like(stack.values)

    def step(self, lr: float) -> None:
        """Exchange, then a step along the sign of the average."""
        clip_rows_(self._stack.grads, self._config.optim.clip_norm)
        self._momentum.mul_(self._factor).add_(self._stack.grads)
        own, sent = self._exchange.coded(
            self._momentum, round_=self.rounds, who=self._who, names=self._names
        )
        self._momentum.sub_(own)
        self._merge(sent)
        self._theta.sub_(self._merged.sign() * lr)
        self._stack.load(self._theta[0])
