"""One outer step in numbers: who takes part with which weight, and what is logged of it.

Pure arithmetic over what the replicas told each other, so every rank comes to the same answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pww.config import schema
from pww.outer import norm_clips, weights
from pww.replica.differences import LARGEST


@dataclass(frozen=True, slots=True)
class OuterReport:
    """What is logged at every outer step. Norms are L2 over all parameters.

    `agreement` is near 1 where the replicas travelled the same way, near 1/sqrt(k) where they
    cancel. `drift` is ||theta_inner - theta_outer|| / ||theta_outer||; two replicas at 0.01 and
    0.30 have a reassuring mean, hence the maximum.
    """

    outer_step: int
    merged: tuple[int, ...]  # the replicas that took part
    tokens: int  # of those
    partial: bool
    delta_norm: float  # of the merged Delta
    avg_delta_norm: float  # mean of the replicas', under the step's own weights
    agreement: float
    drift_mean: float
    drift_max: float
    bytes_sent: int  # by a replica, all its ranks together
    bytes_received: int
    exchange_seconds: float


@dataclass(slots=True)
class Tally:
    """The replicas of one step; `of` decides, `measured` takes in what the merge saw."""

    merged: list[int]
    share: list[float]
    partial: bool
    counted_tokens: list[int]  # of every replica; 0: left out
    drifts: list[float]
    moved: list[float]  # squared deltas of those that take part
    norms: list[float] = field(default_factory=list)
    delta_norm: float = 0.0
    num_bytes: int = 0

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]], *, diloco: schema.Diloco) -> "Tally":
        """From each replica's (round, tokens, partial, squared delta, squared theta), in order.

        Clipping goes by the deltas' norms before they are encoded.
        """
        merged, norms, drifts, squares = [], [], [], []
        for replica, (_, tokens, _, moved, size) in enumerate(rows):
            norm = math.sqrt(moved) if moved >= 0 else math.nan
            if tokens > 0 and norm <= LARGEST:  # nan compares as false
                merged.append(replica)
                norms.append(norm)
                squares.append(moved)
                drifts.append(norm / math.sqrt(size) if size else 0.0)
        counted = [int(row[1]) if i in merged else 0 for i, row in enumerate(rows)]
        share: list[float] = []
        if merged:
            share = weights(
                [counted[i] for i in merged], [0] * len(merged), diloco.staleness_discount,
                norm_clips(norms, diloco.norm_clip),
            )  # fmt: skip
        partial = all(bool(rows[i][2]) for i in merged)
        return cls(merged, share, partial, counted, drifts, squares)

    def measured(self, squares: Sequence[float], total: float, *, num_bytes: int) -> None:
        """Squared norms of the deltas as they came, and of their mean."""
        self.norms = [math.sqrt(square) for square in squares]
        self.delta_norm, self.num_bytes = math.sqrt(total), num_bytes

    def report(self, *, outer_step: int, exchange_seconds: float) -> OuterReport:
        """What is logged; a void step has merged nobody."""
        pairs = list(zip(self.share, self.norms, strict=True))
        travelled = math.fsum(p * norm for p, norm in pairs)
        return OuterReport(
            outer_step=outer_step,
            merged=tuple(self.merged),
            tokens=sum(self.counted_tokens),
            partial=self.partial,
            delta_norm=self.delta_norm,
            avg_delta_norm=travelled / math.fsum(self.share) if self.share else 0.0,
            agreement=self.delta_norm / travelled if travelled else 1.0,
            drift_mean=math.fsum(self.drifts) / len(self.drifts) if self.drifts else 0.0,
            drift_max=max(self.drifts, default=0.0),
            bytes_sent=self.num_bytes,
            bytes_received=self.num_bytes,
            exchange_seconds=exchange_seconds,
        )
