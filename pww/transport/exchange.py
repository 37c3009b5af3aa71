"""The exchange: how one replica gets theta_outer and hands in a delta. Rank 0 only.

One interface, several carriers: `pww.central.inprocess` (a replica alone), `replica.federated`
(across sites, over Flower). The loop does not know which one it has. It lives below both, so that
neither imports the other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pww.wire import Offer, RoundReport, Verdict


@dataclass(frozen=True, slots=True)
class Theta:
    """One published version of theta_outer: a safetensors file (fp32) and the hash of its bytes."""

    round: int
    path: Path
    state_hash: str
    report: RoundReport | None  # the merge that made it; None for theta(0)
    committed_windows: int  # of the corpus, in this theta
    received_bytes: int = 0  # that came for it


class Exchange(Protocol):
    """Pull theta, push deltas. Every method may wait for the network and says so in the log."""

    def pull(self, newest: int = 0) -> Theta:
        """The newest published theta_outer, of round `newest` or later; may seed theta(0) first."""

    def push(self, offer: Offer, payload: Path) -> Verdict:
        """Delivers a delta and waits for its verdict: merged and committed together, or neither.

        Sending again after a lost reply or a restart of the central is safe: a delta id counts
        once.
        """

    def close(self) -> None:
        """Leaves politely; never raises."""
