"""What the replicas of an allocation did in one phase, as one: for the books and for people."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from pww.replica.circle import Circle
from pww.replica.differences import LARGEST
from pww.replica.entry import NOTHING
from pww.replica.measured import MAX_RATE, phase_metrics
from pww.replica.tally import OuterReport, Tally
from pww.trainer.api import EvalResult, PhaseResult
from pww.transport.exchange import Theta
from pww.wire import Gauges, Lease, Leased, Offer, RoundReport


@dataclass(frozen=True, slots=True)
class Pooled:
    """A phase of all replicas: the slowest one's seconds, everybody's tokens."""

    result: PhaseResult
    num_trained: int  # replicas that had something to train on
    finite: bool  # of the loss
    drawn: list[int]  # window ids; on the rank 0 of each replica

    @classmethod
    def of(cls, mine: PhaseResult, outer: Circle) -> "Pooled":
        """Collective over counterparts; each replica's ranks have the same result."""
        rows = outer.numbers(
            float(mine.steps), float(mine.tokens), mine.loss, mine.seconds,
            float(mine.memory_bytes), mine.flops_per_token,
        )  # fmt: skip
        trained = [row for row in rows if row[1] > 0]
        tokens = int(sum(row[1] for row in trained))
        loss = math.fsum(row[2] * row[1] for row in trained) / max(tokens, 1)
        result = replace(
            mine,
            steps=int(max(row[0] for row in rows)),
            tokens=tokens,
            loss=loss,
            seconds=max(row[3] for row in rows),
            memory_bytes=int(max(row[4] for row in rows)),
            flops_per_token=max(row[5] for row in rows),
        )
        return cls(result, len(trained), abs(loss) <= LARGEST, _drawn(mine, outer))


def _drawn(mine: PhaseResult, outer: Circle) -> list[int]:
    """The ids of all replicas, sorted."""
    counts = [int(num) for (num,) in outer.numbers(float(len(mine.drawn)))]
    padded = torch.zeros(max(counts), dtype=torch.int64)
    padded[: len(mine.drawn)] = torch.tensor(mine.drawn, dtype=torch.int64)
    rows = outer.gather(padded)
    return sorted(int(id_) for row, num in zip(rows, counts, strict=True) for id_ in row[:num])


def offer_of(
    lease: Lease,
    pooled: Pooled,
    tally: Tally,
    *,
    run: str,
    base: Theta,
    delta: str,
    prev: str,
    partial: bool,
    finite: bool,
    held_out: EvalResult | None,
    gauges: Callable[[PhaseResult], Gauges],
) -> Offer:
    """The phase as the books know it; nothing travels, so there is no payload."""
    result = pooled.result
    drifts = tally.drifts if finite else []
    metrics = phase_metrics(
        result, held_out, gauges(result),
        drift=math.fsum(drifts) / len(drifts) if drifts else 0.0,
        norm=math.sqrt(max(tally.moved, default=0.0)) if finite else 0.0, residual_norm=0.0,
    )  # fmt: skip
    return Offer(
        run=run, replica=lease.replica, incarnation="0" * 32, delta=delta, prev=prev,
        base_round=base.round, base_hash=base.state_hash,
        spans=(Leased(lease=lease.id, span=lease.span),), tokens=result.tokens, partial=partial,
        finite=finite, payload=NOTHING, metrics=metrics,
    )  # fmt: skip


def report_of(step: OuterReport, pooled: Pooled, *, replica: str) -> RoundReport:
    """The outer step as a central would report its merge; the allocation is one replica's name."""
    result = pooled.result
    return RoundReport(
        round=step.outer_step,
        merged=(replica,) * len(step.merged),
        rejected=(),
        tokens=step.tokens,
        loss=result.loss,
        delta_norm=step.delta_norm,
        avg_delta_norm=step.avg_delta_norm,
        agreement=step.agreement,
        drift_mean=step.drift_mean,
        drift_max=step.drift_max,
        bytes_received=step.bytes_received,
        merge_seconds=step.exchange_seconds,
        tokens_per_s=min(result.tokens / max(result.seconds, 1e-9), MAX_RATE),
    )
