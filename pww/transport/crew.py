"""Other ranks that carry shares of an upload: what each is asked, and what it answers.

Where every node has a way out, one rank's connection need not be all that a site sends with. The
blob store is the only judge of what arrived: a share that did not come is missing there, and
whoever asked sends it himself. So nothing that a rank does or fails to do can harm an upload.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Errand:
    """One rank's share of an upload, with all that it needs to bring it: plain values only."""

    url: str  # of the blob store
    authorization: str  # the session's header, which all ranks of a replica share
    ca_pem: str  # whom to trust; "": the machine's authorities
    path: str  # of the file, in the run's folder, which every node sees
    digest: str
    size_bytes: int
    piece_bytes: int
    missing: tuple[tuple[int, int], ...]  # half-open runs of all pieces that are to be sent
    share: int  # this one is the `share`-th of every `of` of them
    of: int
    timeout_s: float
    deadline_s: float
    min_streams: int
    max_streams: int

    @property
    def pieces(self) -> list[int]:
        """Every `of`-th one: what comes nearly in order is hashed as it comes."""
        every = [n for start, stop in self.missing for n in range(start, stop)]
        return every[self.share :: self.of]


@dataclass(frozen=True, slots=True)
class Report:
    """What became of an errand."""

    rank: int
    bytes_up: int
    retries: int
    fault: str  # "": all of it arrived


class Asked(Protocol):
    """Errands on their way."""

    def reports(self) -> Sequence[Report]:
        """Of those that are over."""

    def end(self) -> None:
        """Whoever is still at it may stop."""


class Crew(Protocol):
    """The other ranks of a replica."""

    @property
    def size(self) -> int:
        """How many there are."""

    def begin(self, errands: Sequence[Errand]) -> Asked:
        """Asks the first ranks, one errand each; returns at once."""
