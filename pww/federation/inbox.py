"""What the server loop needs of the central: who takes part, what to send, who takes what comes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

from pww.wire import Invitation, Offer, Seed, Verdict


class Node(Protocol):
    """What the federation needs to know of a member of the run."""

    @property
    def replica(self) -> str:
        """`site/replica`."""

    @property
    def incarnation(self) -> str:
        """The process life."""

    @property
    def node_key(self) -> str:
        """PEM of its EC public key; "" when it takes no part in the federation."""


class Inbox(Protocol):
    """What the central does with what comes in. Called from the thread of the loop only."""

    def live(self) -> Iterable[Node]:
        """Members that are heard from."""

    def needs_seed(self) -> bool:
        """Whether theta(0) is still wanted."""

    def invitation(
        self, replica: str, kind: Literal["seed", "phase"], *, holds: int = -1
    ) -> tuple[Invitation, Path | None]:
        """The message for one replica, and the payload file beside it. Asked for often.

        `holds`: the newest round whose theta it has for certain, -1 if that is not known.

        Raises:
            NotYet: what the message names cannot be fetched yet.
        """

    @property
    def round(self) -> int:
        """The round that is current."""

    def accept_offer(self, offer: Offer, payload: Path | None) -> Verdict | None:
        """A delta; its verdict if there is one already. The file is gone afterwards.

        Without a file its payload was carried, or it has none.

        Raises:
            NotYet: what was carried is being fetched: hand the delta in again.
        """

    def accept_seed(self, seed: Seed, payload: Path | None) -> None:
        """theta(0); the first one wins. The file is gone afterwards. None: it was carried.

        Raises:
            NotYet: as `accept_offer`.
        """

    def tick(self) -> None:
        """Time passes: leases expire, a due round closes."""

    def finished(self) -> bool:
        """Whether nobody needs the loop any more."""
