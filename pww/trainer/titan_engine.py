"""Torchtitan's Trainer with an open end: a step when told to, and the loss of every token counted.

Import after `titan_cpu.install`.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.distributed import ParallelDims
from torchtitan.trainer import Trainer


class NoMetrics(MetricsProcessor):  # type: ignore[misc]
    """Torchtitan logs nothing: our loop reports a loss that is pooled over steps."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        """Nothing to configure."""

    def should_log(self, step: int) -> bool:
        """Never: a logging step waits for the device and crashes on a loss that is not finite."""
        return False


class Engine(Trainer):  # type: ignore[misc]
    """One replica's model, optimiser and step."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        """Torchtitan's own fields."""

    def __init__(self, config: Config) -> None:
        try:
            super().__init__(config)
        finally:
            # The Trainer turns collection off for good; we want that inside a phase only.
            gc.enable()
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)

    def init_distributed(self) -> ParallelDims:
        """The process group exists already (`ranks.init_ranks`); only the mesh is built on it."""
        return ParallelDims.from_config(self.config.parallelism, dist.get_world_size())

    def forward_backward_step(
        self, *, global_valid_tokens: torch.Tensor, **given: Any
    ) -> torch.Tensor:
        """One pass; adds the loss of this rank's tokens to a counter on the device (no sync)."""
        loss: torch.Tensor = super().forward_backward_step(
            global_valid_tokens=global_valid_tokens, **given
        )
        self._loss_sum += loss.detach().double() * global_valid_tokens
        return loss

    def take_loss(self) -> float:
        """Collective: the loss summed over all tokens since the last call. Waits for the device."""
        if dist.get_world_size() > 1:
            dist.all_reduce(self._loss_sum)
        total = float(self._loss_sum.item())
        self._loss_sum.zero_()
        return total

    def next_step(self, batches: Iterator[Any]) -> None:
        """One optimizer step over the next batch, which must exist on every rank."""
        self.step += 1
        self.gc_handler.run(self.step)
        self.train_step(batches)


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """No automatic garbage collection inside: ranks would do it at different times and wait."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
