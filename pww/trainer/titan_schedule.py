"""Our learning rates in place of torchtitan's scheduler, which counts steps.

Import after `titan_cpu.install`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer


class PhaseLRs(LRSchedulersContainer):  # type: ignore[misc]
    """Sets the rates that a phase was given, one a step; a checkpoint needs nothing of it."""

    @dataclass(kw_only=True, slots=True)
    class Config(LRSchedulersContainer.Config):  # type: ignore[misc]
        """Nothing to configure: a phase brings its rates."""

        def build(self, *, optimizers: OptimizersContainer, training_steps: int) -> "PhaseLRs":
            """Torchtitan's hook: `training_steps` means nothing to a schedule over the corpus."""
            return PhaseLRs(optimizers)

    def __init__(self, optimizers: OptimizersContainer) -> None:
        self.schedulers: list[Any] = []  # torchtitan's own, which stay unused
        self._optimizers = optimizers
        self._rates: Sequence[float] = ()
        self._next = 0

    def assign(self, rates: Sequence[float]) -> None:
        """The rates of the next phase; the first is in force at once."""
        self._rates, self._next = rates, 0
        self._apply()

    @property
    def lr(self) -> float:
        """The rate of the step that comes next."""
        return self._rates[self._next]

    def step(self) -> None:
        """Goes on to the next step's rate, if there is a next step."""
        self._next += 1
        if self._next < len(self._rates):
            self._apply()

    def get_metrics(self) -> dict[str, float]:
        """Nothing: the rate is reported by our own loop."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the rate follows from the lease."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""

    def _apply(self) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.lr
