"""Every transition of the lease table, one event each, and their journal form (a flat JSON object).

An event holds all that `LeaseTable.apply` needs, so a journal replays to the same table. A renewal
is an event only when it promises its holder more time than any before: a restart then gives every
lease at least the time that its holder may still count on.

Events are named tuples because the table makes and applies hundreds of thousands a second, and a
frozen dataclass takes three times as long to make. Unlike bare tuples, two kinds are never equal.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from pww.errors import LeaseError

Reason = Literal["released", "expired", "rejected", "taken over", "left", "stolen"]
"""Why blocks went back to the pool."""


class Granted(NamedTuple):
    """UNASSIGNED -> LEASED. Work may start below `watermark`: nowhere yet if taken ahead."""

    lease: int
    replica: str
    start: int
    stop: int
    watermark: int
    ttl_s: float


class Raised(NamedTuple):
    """LEASED stays so: from now on work may start below `watermark`."""

    lease: int
    watermark: int


class Shrunk(NamedTuple):
    """LEASED -> UNASSIGNED for the tail from `stop`, where no work was authorised."""

    lease: int
    stop: int


class Revived(NamedTuple):
    """UNASSIGNED -> LEASED again: the lease had expired, nobody else got its blocks."""

    lease: int
    ttl_s: float


class Promised(NamedTuple):
    """LEASED stays so: from now on renewals may promise up to `ttl_s`."""

    lease: int
    ttl_s: float


class Pinned(NamedTuple):
    """A delta computed from the lease was received: it cannot expire, return or change hands."""

    lease: int
    delta: str


class Unpinned(NamedTuple):
    """The delta was voided, the replica keeps the lease."""

    lease: int


class Returned(NamedTuple):
    """LEASED -> UNASSIGNED."""

    lease: int
    reason: Reason


class Committed(NamedTuple):
    """LEASED -> COMMITTED, by the merge of `delta`; an audit needs no replay to read it."""

    lease: int
    delta: str
    replica: str
    start: int
    stop: int


class Quarantined(NamedTuple):
    """UNASSIGNED -> QUARANTINED: reclaimed too often after work on it had begun."""

    start: int
    stop: int


Event = (
    Granted
    | Raised
    | Shrunk
    | Revived
    | Promised
    | Pinned
    | Unpinned
    | Returned
    | Committed
    | Quarantined
)

_KINDS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in get_args(Event)}


def _equal(self: Event, other: object) -> bool:
    return type(self) is type(other) and tuple.__eq__(self, other)


def _differ(self: Event, other: object) -> bool:
    return not _equal(self, other)


for _kind in _KINDS.values():
    # one by one, because named tuples have no base class of ours; a hash by value stays right
    _kind.__eq__, _kind.__ne__ = _equal, _differ  # type: ignore[assignment]


def to_record(event: Event) -> dict[str, str | int | float]:
    """The event as a flat JSON object; `from_record` is its inverse."""
    return {"kind": type(event).__name__.lower(), **event._asdict()}


def from_record(record: object) -> Event:
    """The event that `to_record` wrote.

    Raises:
        LeaseError: no such event; the journal is damaged or of another version of pww.
    """
    if not isinstance(record, Mapping):
        raise LeaseError(f"{record!r} is no lease event; the journal is damaged or of another pww")
    values = dict(record)
    kind = _KINDS.get(str(values.pop("kind", "")))
    if kind is None or values.keys() != set(kind._fields):
        raise LeaseError(f"{record!r} is no lease event; the journal is damaged or of another pww")
    if kind is Returned and values["reason"] not in get_args(Reason):
        raise LeaseError(
            f"{record!r} gives an unknown reason; known: {', '.join(get_args(Reason))}"
        )
    return kind(**values)
