"""The lease protocol, HTTP JSON to the coordinator: five calls with their replies, and refusals."""

from typing import Annotated, Literal

from pydantic import Field

from pww.wire.types import (
    Count,
    Digest,
    DigestOrNone,
    Label,
    Message,
    Name,
    Pem,
    ReplicaId,
    Seconds,
    Span,
    Token,
    TokenOrNone,
    Ttl,
)

PROTOCOL = 7
"""Raised with every incompatible change; a central and a site must agree on it."""


class Lease(Message):
    """A span granted to one replica. Samples may be drawn below `watermark` only."""

    id: Count
    replica: ReplicaId
    span: Span
    watermark: Count
    ttl_s: Seconds
    meant: Count = 0  # blocks that the phase was sized for; fewer are left of a corpus' end


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
    "not_ready",  # no aggregator to merge several sites: wait (HTTP 503)
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
    architecture: DigestOrNone = ""  # what their shapes do not tell; "": not told
    last_round: Count  # newest round it has seen; a central behind it has lost state
    theta_round: Count = 0  # a round that it trained from, and the state hash of its theta then
    theta_hash: DigestOrNone = ""
    leases: tuple[Count, ...] = ()  # lease ids in its checkpoint: they stay bound to it
    deltas: tuple[Token, ...] = ()  # delta ids in its outbox that have no verdict yet
    residual: TokenOrNone = ""  # the merged delta after which its residual holds; "": it has none
    versions: Annotated[dict[Label, Label], Field(max_length=32)] = Field(default_factory=dict)


class Carriage(Message):
    """How payloads travel in a run: the central's settings, which hold for every site."""

    codec: Name  # of deltas, by the name that payloads have
    feedback: bool  # what it loses goes out with the next delta
    inline_mb: Count  # larger payloads go by the blob store, or by `url`
    blob_port: Count = 0  # 0: there is none
    url: Annotated[str, Field(max_length=512)] = ""  # of an object store or shared folder


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
    carriage: Carriage | None = None  # None: nothing travels


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
