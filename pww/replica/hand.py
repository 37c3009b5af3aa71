"""What the loop needs besides an inner loop: where a phase comes from and what becomes of it.

Two kinds. `durable.Durable`: one replica, whose delta is a file that waits for its verdict (from a
central, or from the same books in this process). `together.Together`: the replicas of one
allocation, whose deltas never leave their ranks.
"""

from collections.abc import Sequence
from typing import Protocol

from pww.replica.until import Until
from pww.trainer.api import PhaseResult, Trainer
from pww.transport.exchange import Theta
from pww.wire import Lease


class Hand(Protocol):
    """Every method is collective over the ranks of the replica."""

    @property
    def num_windows(self) -> int:
        """Windows on their way into a theta that nobody has yet."""

    def resume(self, trainer: Trainer) -> None:
        """Delivers what a crash or a stop left without a verdict; its id counts once.

        Raises:
            PwwError: it cannot be delivered.
        """

    def acquire(self) -> Lease | None:
        """The lease of the next phase, None at the end of the corpus.

        Raises:
            Stopped: a stop was agreed meanwhile.
        """

    def base(self, lease: Lease, trainer: Trainer) -> Theta | None:
        """The theta that the phase starts from, in the trainer; None: the lease was lost."""

    def windows(self, lease: Lease) -> Sequence[int]:
        """What this replica trains on."""

    def until(self, lease: Lease) -> Until:
        """What ends the phase before its last step."""

    def is_over(self, lease: Lease, result: PhaseResult, until: Until) -> bool:
        """Whether the phase was broken off, so that nothing of it is handed in.

        Raises:
            Stopped: a stop was agreed; the run can be resumed.
        """

    def hand_in(self, lease: Lease, result: PhaseResult, trainer: Trainer) -> None:
        """A whole phase: durable, then merged and committed together, or neither.

        Raises:
            CheckpointError: it could not be made durable; the phase before it is.
            TrainerError: phase after phase was rejected.
        """

    def end(self, trainer: Trainer) -> None:
        """Every block is in or set aside: the trainer holds the last theta, evaluated."""
