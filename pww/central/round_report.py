"""The arithmetic of a round's report: losses pooled by tokens, drift as mean and max, tokens/s
summed over the replicas (each counts once, with its newest delta), MFU by kind of device; all
finite.

A report goes to every site as JSON, which knows no inf and no nan.
"""

import math
from collections.abc import Sequence

from pww.central.merge import MergeResult
from pww.wire import MAX_DEVICES, DeviceMfu, Gauges, Offer, RoundReport, mfu


def round_report(
    result: MergeResult,
    offers: Sequence[Offer],
    *,
    round_: int,
    rejected: Sequence[str],
    bytes_received: int,
    merge_seconds: float,
    retries: int = 0,
) -> RoundReport:
    """What the merge of `offers` did; `rejected` are "site/a: reason" since the merge before."""
    shares = [offer.tokens / result.tokens for offer in offers]
    losses = [offer.metrics.loss for offer in offers]
    drifts = [offer.metrics.drift for offer in offers]
    newest = list({offer.replica: offer.metrics for offer in offers}.values())
    return RoundReport(
        round=round_,
        merged=tuple(offer.replica for offer in offers),
        rejected=tuple(rejected),
        tokens=result.tokens,
        loss=math.fsum(p * loss for p, loss in zip(shares, losses, strict=True)),
        delta_norm=result.delta_norm,
        avg_delta_norm=result.avg_delta_norm,
        agreement=result.agreement,
        drift_mean=math.fsum(drift / len(drifts) for drift in drifts),
        drift_max=max(drifts),
        bytes_received=bytes_received,
        merge_seconds=merge_seconds,
        retries=retries,
        tokens_per_s=math.fsum(told.tokens_per_s for told in newest),
        mfu=_mfu([told.gauges for told in newest]),
    )


def _mfu(gauges: Sequence[Gauges]) -> tuple[DeviceMfu, ...]:
    """FLOPs by peak FLOPs, for each kind of device: a mean over kinds would say nothing."""
    done: dict[str, list[Gauges]] = {}
    for one in gauges:
        if one.flops_per_s and one.peak_flops_per_s:
            done.setdefault(one.device, []).append(one)
    return tuple(
        DeviceMfu(
            device=device,
            mfu=mfu(
                math.fsum(one.flops_per_s for one in some),
                math.fsum(one.peak_flops_per_s for one in some),
            ),
        )
        for device, some in sorted(done.items())[:MAX_DEVICES]
    )
