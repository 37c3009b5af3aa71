"""What a phase measured, as a message can tell it: numbers only, within their limits."""

from pww.replica.differences import LARGEST
from pww.trainer.api import EvalResult, PhaseResult
from pww.wire import Gauges, HeldOutSet, PhaseMetrics

MAX_RATE = 1e9
"""Tokens per second that a message can tell; a phase can be shorter than the clock's tick."""


def phase_metrics(
    result: PhaseResult,
    held_out: EvalResult | None,
    gauges: Gauges,
    *,
    drift: float,
    norm: float,
    residual_norm: float,
) -> PhaseMetrics:
    """The metrics of an offer; a held-out loss that is no number is left out."""
    if held_out is not None and not abs(held_out.loss) <= LARGEST:
        held_out = None
    return PhaseMetrics(
        steps=result.steps,
        tokens=result.tokens,
        loss=result.loss if abs(result.loss) <= LARGEST else 0.0,
        phase_seconds=result.seconds,
        tokens_per_s=min(result.tokens / max(result.seconds, 1e-9), MAX_RATE),
        drift=drift,
        delta_norm=norm,
        residual_norm=residual_norm,
        held_out_loss=-1.0 if held_out is None else held_out.loss,
        held_out_tokens=0 if held_out is None else held_out.tokens,
        held_out_sets=() if held_out is None else _sets(held_out),
        gauges=gauges,
    )


def _sets(held_out: EvalResult) -> tuple[HeldOutSet, ...]:
    """The losses over other corpora that a message can tell."""
    return tuple(
        HeldOutSet(name=one.name, loss=one.loss, tokens=one.tokens)
        for one in held_out.sets
        if abs(one.loss) <= LARGEST
    )
