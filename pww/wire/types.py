"""What the fields of messages are made of: bounded numbers, patterned text, spans; all validated.

A remote's word is taken only in these forms.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# In pydantic's (Rust) patterns `$` is the very end: a trailing newline does not match.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}$")]
ReplicaId = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,31}/[a-z0-9][a-z0-9_.-]{0,31}$")
]
"""`site/replica`, stable across requeues: never a job id."""
Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""128 random bits in hex: incarnations, idempotency keys, delta ids, run ids."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""256 bits in hex: BLAKE3 of payloads and theta, SHA-256 of what describes a run."""
DigestOrNone = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")]
"""A `Digest`, or "" where there is none."""
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
MAX_SPEED = 1e30
Speed = Annotated[float, Field(ge=0.0, le=MAX_SPEED, allow_inf_nan=False)]
"""So much a second: FLOPs of a machine, bytes of a link; 0 where it was not measured."""
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
