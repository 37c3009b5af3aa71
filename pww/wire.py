"""What the site side and the central say to each other; the only thing that the two share.

Every message is strict, frozen and closed (unknown keys are refused), so validating a remote's
bytes is `Message.model_validate_json(body)` and nothing else. Two channels carry them:

* lease protocol (HTTP JSON to the coordinator): `Register Acquire Heartbeat Release Leave`, each
  with its reply;
* outer loop (Flower messages): `Invitation` down, `Offer` up, with tensors beside them as one
  payload.

A refusal is HTTP 4xx with a `Refusal` body. Units are in the names; a `Span` is half-open.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

PROTOCOL = 1
"""Raised with every incompatible change; a central and a site must agree on it."""

# In pydantic's (Rust) patterns `$` is the very end: a trailing newline does not match.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}$")]
ReplicaId = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}/[a-z0-9][a-z0-9_.-]{0,31}$")
]
"""`site/replica`, stable across requeues: never a job id."""
Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""128 random bits in hex: incarnations, idempotency keys, delta ids, run ids."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hex."""
TokenOrNone = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{32})?$")]
"""A `Token`, or "" where there is none."""
Label = Annotated[str, StringConstraints(max_length=64)]
Pem = Annotated[str, StringConstraints(max_length=1000)]
Count = Annotated[int, Field(ge=0, lt=2**62)]
Seconds = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
MAX_TTL_S = 86_400.0
"""A lease that nobody renews returns within a day, whatever its holder asked for."""
Ttl = Annotated[float, Field(ge=0.0, le=MAX_TTL_S, allow_inf_nan=False)]
Measured = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
"""What a site says that it measured: far enough from the end of a float to be summed by tokens."""
Computed = Annotated[float, Field(ge=-1e60, le=1e60, allow_inf_nan=False)]
"""What the central computes: holds sums of `Measured` and the norm of any finite fp32 tensors."""
MAX_STOP = 2**62
"""End of the last position that any index space can have; far inside SQLite's and Python's ends."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open run of positions `[start, stop)`; never empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= MAX_STOP:
            raise ValueError(f"span [{self.start}, {self.stop}) is empty, negative or past 2**62")

    def __len__(self) -> int:
        return self.stop - self.start


class Message(BaseModel):
    """Base of everything on the wire: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# ------------------------------------------------------------------------------------------ leases


class Lease(Message):
    """A span granted to one replica. Samples may be drawn below `watermark` only."""

    id: Count
    replica: ReplicaId
    span: Span
    watermark: Count
    ttl_s: Seconds


class SpaceInfo(Message):
    """The index space as values, so that a refusal can print both sides'."""

    num_windows: Count
    block_windows: Count
    window_tokens: Count
    seed: Count
    epochs: Count
    permutation: Name
    corpus: Digest
    digest: Digest


RefusalCode = Literal[
    "bad_request",  # malformed or out of protocol
    "wrong_space",  # corpus, tokenizer, block size or seed differ
    "wrong_model",  # tensor names or shapes differ
    "wrong_run",  # this central serves another run (or an empty one)
    "replica_taken",  # another live process has this replica id
    "unknown_incarnation",  # not registered (any more): register again, or you were replaced
    "too_large",
    "closed",  # the run is complete
    "unauthorised",  # no valid credential, or one of somebody else (HTTP 401)
    "too_many",  # refused too often in a short time: wait (HTTP 429)
]


class Refusal(Message):
    """Why the central said no: a code for programs, a sentence for people."""

    code: RefusalCode
    message: str
    retry_after_s: Seconds = 0.0


class Register(Message):
    """First message of a process: who it is, what it would train on, and what it still holds."""

    protocol: Count = PROTOCOL
    replica: ReplicaId
    incarnation: Token
    node_key: Pem  # the EC P-384 public key of this incarnation's Flower node, "" for none
    run: TokenOrNone  # run id that its checkpoint belongs to; "" on a first start
    space: SpaceInfo
    model: Digest  # `model_digest` of the parameters
    last_round: Count  # newest round it has seen; a central behind it has lost state
    leases: tuple[Count, ...] = ()  # lease ids in its checkpoint: they stay bound to it
    deltas: tuple[Token, ...] = ()  # delta ids in its outbox that have no verdict yet
    residual: TokenOrNone = ""  # the merged delta after which its residual holds; "": it has none
    versions: Annotated[dict[Label, Label], Field(max_length=32)] = Field(default_factory=dict)


class Registered(Message):
    """Accepted. `leases` are those of its claims that it still holds; everything else was
    released.
    """

    run: Token
    round: Count
    aggregator_port: Count  # 0: none (single site, outer step in process)
    limit_mb: Count = 0  # largest payload that the central takes; 0: nothing travels
    heartbeat_s: Seconds
    detect_s: Seconds
    leases: tuple[Lease, ...]
    last_merged: TokenOrNone = ""  # its replica's last merged delta: what a residual must be of


class Acquire(Message):
    """Asks for one span of at most `num_blocks` blocks.

    `ahead`: for the phase after the running one. Work on it is not authorised yet (its watermark is
    its start), so that an idle replica may still get it.
    """

    replica: ReplicaId
    incarnation: Token
    key: Token
    num_blocks: Annotated[int, Field(ge=1, lt=2**40)]
    ttl_s: Ttl
    ahead: bool = False


class Granted(Message):
    """A lease."""

    kind: Literal["granted"] = "granted"
    lease: Lease


class Wait(Message):
    """Nothing to lease now, but blocks leased elsewhere may come back."""

    kind: Literal["wait"] = "wait"
    retry_after_s: Seconds


class Exhausted(Message):
    """Every block is committed or quarantined: the run is over.

    `quarantined` names blocks (the first thousand), `num_quarantined` counts them.
    """

    kind: Literal["exhausted"] = "exhausted"
    committed: Count
    quarantined: Annotated[tuple[Count, ...], Field(max_length=1000)] = ()
    num_quarantined: Count = 0


class Acquired(Message):
    """The answer to `Acquire`, and the newest round, so that the last answer names the last one."""

    round: Count
    answer: Annotated[Granted | Wait | Exhausted, Field(discriminator="kind")]


class Renewal(Message):
    """Asks to keep a lease for `ttl_s` more seconds.

    `start`: and to authorise work on all that it holds by now, which nobody can take any more.
    """

    id: Count
    ttl_s: Ttl
    start: bool = False


class Heartbeat(Message):
    """Sent every `heartbeat_s`, with or without leases: it is also how liveness is known."""

    replica: ReplicaId
    incarnation: Token
    leases: tuple[Renewal, ...]
    windows_per_s: Seconds = 0.0


class LeaseState(Message):
    """What the central says of one lease. `valid=False` is an order: the lease is lost.

    `stop` is the authoritative end, which may have shrunk; work may start below `watermark` only.
    """

    id: Count
    valid: bool
    stop: Count
    watermark: Count


class Instruction(Message):
    """The answer to a heartbeat."""

    leases: tuple[LeaseState, ...]
    round: Count


class Release(Message):
    """Gives leases back uncommitted."""

    replica: ReplicaId
    incarnation: Token
    leases: tuple[Count, ...]


class Leave(Message):
    """Goodbye. Leases in `keep` (those of unsent deltas) stay until they expire; others return
    now.
    """

    replica: ReplicaId
    incarnation: Token
    keep: tuple[Count, ...] = ()


class Done(Message):
    """Accepted, nothing else to say."""


Call = Register | Acquire | Heartbeat | Release | Leave
"""What a site asks the coordinator."""


# ------------------------------------------------------------------------------------- outer loop


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
    sha256: Digest


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


class Offer(Message):
    """A delta: `theta_outer(base_round) - theta_inner`, computed from exactly `spans`."""

    kind: Literal["offer"] = "offer"
    run: Token
    replica: ReplicaId
    incarnation: Token
    delta: Token
    prev: TokenOrNone  # this replica's last merged delta id when this one was encoded, "" if none
    base_round: Count
    spans: Annotated[tuple[Leased, ...], Field(min_length=1)]
    tokens: Count  # targets of all windows of `spans`, neither more nor fewer
    partial: bool  # fewer than H steps: steps the outer optimiser with momentum 0
    finite: bool  # False: the site found nan/inf and sends no payload
    payload: PayloadInfo
    metrics: PhaseMetrics


class Seed(Message):
    """theta(0), offered by the replica that was asked to seed the run."""

    kind: Literal["seed"] = "seed"
    run: Token
    replica: ReplicaId
    incarnation: Token
    model: Digest
    payload: PayloadInfo


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


class Invitation(Message):
    """Standing request of the central: seed the run, or train from `round` and answer with an
    `Offer`.
    """

    kind: Literal["seed", "phase"]
    run: Token
    round: Count
    state_hash: str  # hash of theta(round) over its fp32 bytes; "" when kind is seed
    committed_windows: Count  # of the corpus, in theta(round): where the LR schedule stands
    payload: PayloadInfo | None  # theta(round) beside this message; None when kind is seed
    verdicts: tuple[Verdict, ...]  # this replica's decided deltas, newest last (the last few)
    report: RoundReport | None  # the merge that made `round`


def model_digest(shapes: Mapping[str, Sequence[int]]) -> str:
    """SHA-256 over parameter names and shapes in name order: two sites that differ never merge."""
    text = "\n".join(f"{name} {tuple(int(n) for n in shapes[name])}" for name in sorted(shapes))
    return hashlib.sha256(text.encode()).hexdigest()
