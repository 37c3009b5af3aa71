"""What the outer loop needs of an inner loop. `titan` is the engine; tests bring closed forms.

All methods are collective: every rank of the replica calls them in the same order. "On rank 0"
means that only rank 0's argument is read, or only rank 0 gets the value.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """What one phase did, measured by the trainer itself."""

    steps: int
    tokens: int  # targets that the loss was taken over
    loss: float  # mean over tokens, nats
    seconds: float
    drawn: tuple[
        int, ...
    ]  # window ids that the data loader really fetched, all ranks, sorted; rank 0
    stopped: bool  # True: a stop was agreed before the last step; the phase must not be delivered
    flops_per_token: float = 0.0  # of the model, forward and backward; 0: nobody counted
    memory_bytes: int = 0  # the most that one rank had in use: of its device, or of a CPU's process


@dataclass(frozen=True, slots=True)
class SetResult:
    """Loss over another corpus' windows, pooled over tokens."""

    name: str
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Held-out loss, pooled over tokens; and that of other corpora."""

    loss: float
    tokens: int
    sets: tuple[SetResult, ...] = ()
    accuracy: float = math.nan  # share of images that are told right; nan: no images


class StepHook(Protocol):
    """Called on rank 0 every `metrics.every_steps` steps and after the last step of a phase."""

    def __call__(
        self, *, step: int, done: int, of: int, loss: float, tokens: int, lr: float
    ) -> None:
        """`step` counts over the run, `done` of `of` and `tokens` within the phase.

        `loss` is the mean over the tokens since the last call, `lr` the rate of the last step.
        """


class InnerCopy(Protocol):
    """The inner state of one moment, in this rank's memory."""

    def write(self, folder: Path) -> None:
        """Not collective: writes this rank's part into `folder`, durably; from any thread.

        On all ranks it makes what `save_inner` makes.

        Raises:
            CheckpointError: it cannot be written.
        """


class Trainer(Protocol):
    """An inner loop over sharded tensors."""

    @property
    def step(self) -> int:
        """Inner steps taken over the whole run (restored on resume)."""

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Full shape of every parameter, in the order of `tensors`. Not collective."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter in full, fp32, where it lives, one at a time; valid on rank 0.

        On the accelerator, so that what is encoded is encoded there and only its parts travel to
        the host.
        """

    def load(self, theta: Path) -> None:
        """Writes a safetensors file (rank 0 reads it) into the shards, bit for bit.

        Raises:
            PayloadError: names, shapes or dtypes differ from `shapes`.
        """

    def run(
        self,
        windows: Sequence[int],
        *,
        progress: float,
        progress_end: float,
        on_step: StepHook,
        stop: "Stop",
    ) -> PhaseResult:
        """Trains on exactly `windows`, `optim.batch_windows` a step; the last one padded, masked.

        `progress` is committed / total windows at the start and `progress_end` the share expected
        at the end; the LR schedule follows the line between them.
        """

    def expect(self, windows: Sequence[int]) -> None:
        """`windows` are likely to be run next: what this rank will read of them may be fetched now.

        Changes nothing else, returns soon and never raises. Not collective.
        """

    def evaluate(self) -> EvalResult:
        """Loss over the fixed held-out windows; changes no state."""

    def save_inner(self, folder: Path) -> None:
        """Writes optimiser, step and RNG state into a new folder (fsync and rename are yours).

        Raises:
            CheckpointError: it cannot be written (a full disk, say), or there is a state already.
        """

    def copy_inner(self) -> InnerCopy:
        """The same state in memory, as it is now; what is done afterwards changes nothing of it.

        Raises:
            CheckpointError: it cannot be copied.
        """

    def load_inner(self, folder: Path) -> None:
        """Restores what `save_inner` wrote, on any number of ranks.

        Raises:
            CheckpointError: something is missing or does not fit.
        """

    def reset_inner(self) -> None:
        """Forgets the optimiser state (after a phase that went to nan); the step count stays."""

    def close(self) -> None:
        """Ends the process groups so that the interpreter can exit cleanly."""


class Live(Trainer, Protocol):
    """A trainer whose parameters an outer step may change in place, shard by shard."""

    @property
    def module(self) -> nn.Module:
        """The live model. Not collective."""


class Stop(Protocol):
    """A request to stop that all ranks agree on at one step."""

    def agreed(self) -> bool:
        """Collective: True on every rank as soon as any rank was asked to stop."""
