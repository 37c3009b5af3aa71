"""The arithmetic of a round's report: losses pooled by tokens, drift as mean and max."""

import math
from collections.abc import Sequence

from pww.central.merge import MergeResult
from pww.wire import Offer, RoundReport


def metrics_fault(offer: Offer) -> str:
    """Which of an offer's metrics is nan or inf, "" if none is; one would poison the report."""
    told = offer.metrics
    for name in ("loss", "drift", "delta_norm", "held_out_loss"):
        value = getattr(told, name)
        if not math.isfinite(value):
            return f"its metric {name} is {value}"
    return ""


def round_report(
    result: MergeResult,
    offers: Sequence[Offer],
    *,
    round_: int,
    rejected: Sequence[str],
    bytes_received: int,
    merge_seconds: float,
) -> RoundReport:
    """What the merge of `offers` did; `rejected` are "site/a: reason" since the merge before."""
    tokens = sum(offer.metrics.tokens for offer in offers)
    pooled = math.fsum(offer.metrics.loss * offer.metrics.tokens for offer in offers)
    drifts = [offer.metrics.drift for offer in offers]
    return RoundReport(
        round=round_,
        merged=tuple(offer.replica for offer in offers),
        rejected=tuple(rejected),
        tokens=result.tokens,
        loss=pooled / max(tokens, 1),
        delta_norm=result.delta_norm,
        avg_delta_norm=result.avg_delta_norm,
        agreement=result.agreement,
        drift_mean=math.fsum(drifts) / len(drifts),
        drift_max=max(drifts),
        bytes_received=bytes_received,
        merge_seconds=merge_seconds,
    )
