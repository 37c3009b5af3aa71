"""What the site side and the central say to each other; the only thing that the two share.

Every message is strict, frozen and closed (unknown keys are refused), so validating a remote's
bytes is `Message.model_validate_json(body)` and nothing else. Two channels carry them:

* lease protocol (HTTP JSON to the coordinator): `Register Acquire Heartbeat Release Leave`, each
  with its reply;
* outer loop (Flower messages): `Invitation` down, `Offer` up, with tensors beside them as one
  payload.

A refusal is HTTP 4xx with a `Refusal` body. Units are in the names; a `Span` is half-open.
"""

from pww.wire.leases import (
    PROTOCOL,
    Acquire,
    Acquired,
    Call,
    Done,
    Exhausted,
    Granted,
    Heartbeat,
    Instruction,
    Lease,
    LeaseState,
    Leave,
    Refusal,
    RefusalCode,
    Register,
    Registered,
    Release,
    Renewal,
    SpaceInfo,
    Wait,
)
from pww.wire.outer import (
    Invitation,
    Leased,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    RoundReport,
    Seed,
    Verdict,
    model_digest,
)
from pww.wire.types import (
    MAX_STOP,
    MAX_TTL_S,
    Computed,
    Count,
    Digest,
    DigestOrNone,
    Label,
    Measured,
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

__all__ = [
    "Acquire",
    "Acquired",
    "Call",
    "Computed",
    "Count",
    "Digest",
    "DigestOrNone",
    "Done",
    "Exhausted",
    "Granted",
    "Heartbeat",
    "Instruction",
    "Invitation",
    "Label",
    "Lease",
    "LeaseState",
    "Leased",
    "Leave",
    "MAX_STOP",
    "MAX_TTL_S",
    "Measured",
    "Message",
    "Name",
    "Offer",
    "PROTOCOL",
    "PayloadInfo",
    "Pem",
    "PhaseMetrics",
    "Refusal",
    "RefusalCode",
    "Register",
    "Registered",
    "Release",
    "Renewal",
    "ReplicaId",
    "RoundReport",
    "Seconds",
    "Seed",
    "SpaceInfo",
    "Span",
    "Token",
    "TokenOrNone",
    "Ttl",
    "Verdict",
    "Wait",
    "model_digest",
]
