"""What every method of training is: it takes the workers' gradients and moves parameters."""

from collections.abc import Sequence
from typing import Protocol

import torch

from pww.lab.traffic import Traffic


class Method(Protocol):
    """One way in which M workers train one model.

    The engine computes the loss of each worker at `stack.values` and its gradient in `stack.grads`;
    `step` does the rest.
    """

    @property
    def traffic(self) -> Traffic:
        """Bytes of a worker so far."""

    @property
    def rounds(self) -> int:
        """Exchanges of the whole model so far."""

    def active(self) -> Sequence[bool]:
        """Who trains in the step that comes; asked once a step."""

    def step(self, lr: float) -> None:
        """One step of every active worker, and what is exchanged after it.

        Raises:
            NotFiniteError: what would be exchanged is nan or inf.
        """

    def theta(self) -> torch.Tensor:
        """The parameters that the training has come to (n,)."""
