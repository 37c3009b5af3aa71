"""The outer loop, Flower messages: `Invitation` down, `Offer` up, with one payload beside them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pww.wire.types import (
    MAX_SPEED,
    Computed,
    Count,
    Digest,
    Label,
    Measured,
    Message,
    Name,
    ReplicaId,
    Seconds,
    Span,
    Speed,
    Token,
    TokenOrNone,
)

MAX_SETS = 16
"""Corpora that one replica is evaluated on besides its own."""
MAX_DEVICES = 64
"""Kinds of devices in one run."""


class Verdict(Message):
    """What became of a delta. `merged` is durable together with its blocks; `rejected` released
    them.
    """

    delta: Token
    outcome: Literal["merged", "rejected"]
    round: Count  # the round that it was merged into, or that was current when it was rejected
    reason: str = ""


class Leased(Message):
    """A span under a lease, as a delta names it."""

    lease: Count
    span: Span


class PayloadInfo(Message):
    """What the payload beside a message must be."""

    codec: Name
    size_bytes: Count
    digest: Digest


class HeldOutSet(Message):
    """Loss over another corpus' windows at base_round; `name` is part of a column's name."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]{0,31}$")]
    loss: Measured
    tokens: Count


class Gauges(Message):
    """What people want to see of a phase and its process; 0 where nobody measured.

    Bytes are of payloads, over the life of the process, by the time that the phase ended; the
    exchange and the wait are those before it.
    """

    device: Label = ""  # what one rank computes on: H100
    ranks: Count = 0
    flops_per_s: Speed = 0.0  # of the model, all ranks together
    peak_flops_per_s: Speed = 0.0  # what the devices are sold as, all ranks together
    memory_bytes: Count = 0  # the most that a rank had in use: of its device, or of a CPU's process
    wait_seconds: Seconds = 0.0  # for a lease and theta
    exchange_seconds: Seconds = 0.0  # from the offer to the verdict
    bytes_up: Count = 0
    bytes_down: Count = 0
    up_bytes_per_s: Speed = 0.0  # while a carrier sent
    down_bytes_per_s: Speed = 0.0

    @property
    def mfu(self) -> float:
        """Share of the peak that was reached; 0 where the peak is not known."""
        return mfu(self.flops_per_s, self.peak_flops_per_s)


def mfu(flops_per_s: float, peak_flops_per_s: float) -> float:
    """Share of a peak; 0 where it is not known, and never more than a message can tell."""
    return min(flops_per_s / peak_flops_per_s, MAX_SPEED) if peak_flops_per_s else 0.0


class PhaseMetrics(Message):
    """What a site measured over one phase. `loss` is the mean over tokens, in nats."""

    steps: Count
    tokens: Count
    loss: Measured
    phase_seconds: Seconds
    tokens_per_s: Seconds
    drift: Measured = 0.0
    delta_norm: Measured = 0.0
    residual_norm: Measured = 0.0  # of what encoding lost; the next delta brings it along
    held_out_loss: Measured = -1.0  # at base_round; negative: not evaluated this phase
    held_out_tokens: Count = 0
    held_out_sets: Annotated[tuple[HeldOutSet, ...], Field(max_length=MAX_SETS)] = ()
    gauges: Gauges = Gauges()


class Offer(Message):
    """A delta: `theta_outer(base_round) - theta_inner`, computed from exactly `spans`."""

    kind: Literal["offer"] = "offer"
    run: Token
    replica: ReplicaId
    incarnation: Token
    delta: Token
    prev: TokenOrNone  # this replica's last merged delta id when this one was encoded, "" if none
    base_round: Count
    base_hash: Digest  # state hash of theta_outer(base_round) at the site
    spans: Annotated[tuple[Leased, ...], Field(min_length=1)]
    tokens: Count  # targets of all windows of `spans`, neither more nor fewer
    partial: bool  # fewer than H steps: steps the outer optimiser with momentum 0
    finite: bool  # False: the site found nan/inf and sends no payload
    payload: PayloadInfo
    carried: bool = False  # the payload is not beside this message: it went to the blob store
    metrics: PhaseMetrics


class Update(Message):
    """What theta of the round before is updated by: subtracted as decoded, it gives `round`'s."""

    round: Count
    state_hash: Digest  # of theta(round)
    payload: PayloadInfo


class Seed(Message):
    """theta(0), offered by the replica that was asked to seed the run."""

    kind: Literal["seed"] = "seed"
    run: Token
    replica: ReplicaId
    incarnation: Token
    model: Digest
    payload: PayloadInfo
    carried: bool = False  # as in `Offer`


class DeviceMfu(Message):
    """Share of the peak that all devices of one kind reached together."""

    device: Label
    mfu: Speed


class RoundReport(Message):
    """What one merge did; rows of `split=outer` are made of these."""

    round: Count  # the round that this merge produced
    merged: tuple[ReplicaId, ...]
    rejected: tuple[str, ...]  # "site/a: reason"
    tokens: Count
    loss: Computed  # pooled by tokens
    delta_norm: Computed  # norm of the merged Delta
    avg_delta_norm: Computed  # mean of the norms of the Delta_i
    agreement: Computed
    drift_mean: Computed
    drift_max: Computed
    bytes_received: Count
    merge_seconds: Seconds
    retries: Count = 0  # since the round before: the central's own requests that were repeats
    tokens_per_s: Speed = 0.0  # of all replicas together, while each trained
    mfu: Annotated[tuple[DeviceMfu, ...], Field(max_length=MAX_DEVICES)] = ()


class Invitation(Message):
    """Standing request of the central: seed the run, or train from `round` and answer with an
    `Offer`.
    """

    kind: Literal["seed", "phase"]
    run: Token
    round: Count
    state_hash: str  # hash of theta(round) over its fp32 bytes; "" when kind is seed
    committed_windows: Count  # of the corpus, in theta(round): where the LR schedule stands
    payload: PayloadInfo | None  # theta(round), whole; None when kind is seed
    updates: Annotated[tuple[Update, ...], Field(max_length=64)] = ()  # the last one makes `round`
    beside: Literal["theta", "update", "nothing"] = "theta"  # which file lies beside this message
    verdicts: tuple[Verdict, ...]  # this replica's decided deltas, newest last (the last few)
    # its deltas that are durable here and have no verdict: offered again, they need no payload
    staged: tuple[Token, ...] = ()
    report: RoundReport | None  # the merge that made `round`


def model_digest(shapes: Mapping[str, Sequence[int]]) -> str:
    """SHA-256 over parameter names and shapes in name order: two sites that differ never merge."""
    text = "\n".join(f"{name} {tuple(int(n) for n in shapes[name])}" for name in sorted(shapes))
    return hashlib.sha256(text.encode()).hexdigest()
