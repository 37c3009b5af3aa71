"""The port to the books: all that merge and server loop ask of the coordinator, and tell it.

`Coordinator` is the books; `RemoteBooks` are those of another process on this machine. Only the
merge moves the round (`seed`, `close_round`), so between two of its own calls the properties stand
still, but for `model`. Every call that changes something may be repeated.
"""

from collections.abc import Sequence
from typing import Protocol

from pww.central.membership import Member
from pww.central.state import Staged
from pww.central.status import Status
from pww.central.unsent import Unsent
from pww.wire import Offer, RoundReport, Verdict


class Books(Protocol):
    """One run's books, as its merge sees them. Thread-safe."""

    @property
    def run(self) -> str:
        """Random id of the run."""

    @property
    def model(self) -> str:
        """`model_digest` of what the run trains, "" before the first site has registered."""

    @property
    def round(self) -> int:
        """Version of theta_outer."""

    @property
    def generation(self) -> str:
        """Name of the generation that holds theta_outer(round), "" before theta(0)."""

    @property
    def state_hash(self) -> str:
        """Hash of theta_outer(round), "" before theta(0)."""

    @property
    def committed_windows(self) -> int:
        """Windows in theta_outer(round)."""

    def report(self) -> RoundReport | None:
        """What the newest merge did."""

    def reports(self, *, after: int = 0) -> tuple[RoundReport, ...]:
        """What each merge after that round did, oldest first."""

    def tokens_total(self, round_: int, /) -> int:
        """All tokens that theta_outer of that round has absorbed."""

    def verdicts(self, replica: str, /) -> tuple[Verdict, ...]:
        """The replica's last verdicts, oldest first."""

    def staged(self) -> tuple[Staged, ...]:
        """Undecided deltas, ordered by replica id, then delta id."""

    def expected(self) -> frozenset[str]:
        """Live replicas that hold a started lease whose delta has not come yet."""

    def live(self) -> tuple[Member, ...]:
        """Members that are heard from."""

    def silent(self) -> tuple[Member, ...]:
        """Members that are not heard from any more and never said goodbye."""

    def exhausted(self) -> bool:
        """Whether every block is committed, or set aside for good."""

    def status(self) -> Status:
        """The run in numbers, as JSON-safe values."""

    def unsent(self) -> tuple[Unsent, ...]:
        """Residuals that replicas hold."""

    def tick(self) -> None:
        """Time passes: who owns the books expires leases and notices silence."""

    def receive(self, offer: Offer, /) -> Verdict | None:
        """Makes a delta durable and pins its spans, or answers at once; see `Deltas.receive`.

        Raises:
            Refused: the id was used for another delta.
            StateError: the disk refused; nothing happened.
        """

    def reject(self, delta: str, reason: str, /) -> Verdict:
        """Rejects an undecided delta and those encoded on it; see `Deltas.reject`.

        Raises:
            LeaseError: it was never received, or is merged.
            StateError: the disk refused; nothing happened.
        """

    def close_round(
        self, *, merged: Sequence[str], generation: str, state_hash: str, report: RoundReport
    ) -> None:
        """Round + 1 and its commits in one transaction; see `Deltas.close_round`.

        Raises:
            LeaseError: the merge does not follow from what is pending; nothing changed.
            StateError: the disk refused; nothing changed.
        """

    def seed(self, *, generation: str, state_hash: str) -> None:
        """theta(0) is published as round 0; the first one wins.

        Raises:
            LeaseError: another theta(0) was published before.
            StateError: the disk refused; nothing happened.
        """
