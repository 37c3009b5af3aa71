"""Every transition of the lease table, one event each, and their journal form (a flat JSON object).

An event holds all that `LeaseTable.apply` needs, so a journal replays to the same table. A renewal
is an event only when it promises its holder more time than any before: a restart then gives every
lease at least the time that its holder may still count on.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from pww.errors import LeaseError

Reason = Literal["released", "expired", "rejected", "taken over", "left"]
"""Why blocks went back to the pool."""


@dataclass(frozen=True, slots=True)
class Granted:
    """UNASSIGNED -> LEASED."""

    lease: int
    replica: str
    start: int
    stop: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Revived:
    """UNASSIGNED -> LEASED again: the lease had expired, nobody else got its blocks."""

    lease: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Promised:
    """LEASED stays so: from now on renewals may promise up to `ttl_s`."""

    lease: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Pinned:
    """A delta computed from the lease was received: it cannot expire, return or change hands."""

    lease: int
    delta: str


@dataclass(frozen=True, slots=True)
class Unpinned:
    """The delta was voided, the replica keeps the lease."""

    lease: int


@dataclass(frozen=True, slots=True)
class Returned:
    """LEASED -> UNASSIGNED."""

    lease: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Committed:
    """LEASED -> COMMITTED, by the merge of `delta`; an audit needs no replay to read it."""

    lease: int
    delta: str
    replica: str
    start: int
    stop: int


Event = Granted | Revived | Promised | Pinned | Unpinned | Returned | Committed

_KINDS: dict[str, type[Event]] = {
    kind.__name__.lower(): kind
    for kind in (Granted, Revived, Promised, Pinned, Unpinned, Returned, Committed)
}


def to_record(event: Event) -> dict[str, str | int | float]:
    """The event as a flat JSON object; `from_record` is its inverse."""
    return {"kind": type(event).__name__.lower(), **asdict(event)}


def from_record(record: dict[str, Any]) -> Event:
    """The event that `to_record` wrote.

    Raises:
        LeaseError: no such event; the journal is damaged or of another version of pww.
    """
    values = dict(record)
    kind = _KINDS.get(str(values.pop("kind", "")))
    if kind is None or set(values) != {field.name for field in fields(kind)}:
        raise LeaseError(f"{record!r} is no lease event; the journal is damaged or of another pww")
    if kind is Returned and values["reason"] not in get_args(Reason):
        raise LeaseError(
            f"{record!r} gives an unknown reason; known: {', '.join(get_args(Reason))}"
        )
    return kind(**values)
