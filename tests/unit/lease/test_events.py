"""Events and their journal form."""

import json
from operator import eq, ne
from typing import get_args

import pytest

from pww.errors import LeaseError
from pww.lease.events import (
    Committed,
    Event,
    Granted,
    Pinned,
    Promised,
    Quarantined,
    Raised,
    Returned,
    Revived,
    Shrunk,
    Unpinned,
    from_record,
    to_record,
)

EVENTS: list[Event] = [
    Granted(1, "lumi/a", 0, 4, 4, 60.0),
    Revived(1, 60.0),
    Promised(1, 75.0),
    Granted(2, "lumi/a", 4, 9, 4, 60.0),
    Raised(2, 9),
    Shrunk(2, 7),
    Quarantined(9, 11),
    Returned(2, "stolen"),
    Pinned(1, "d" * 32),
    Unpinned(1),
    Returned(1, "taken over"),
    Committed(1, "d" * 32, "lumi/a", 0, 4),
]


@pytest.mark.parametrize("event", EVENTS)
def test_through_the_journal_and_back(event: Event) -> None:
    record = json.loads(json.dumps(to_record(event)))
    assert all(isinstance(value, str | int | float) for value in record.values()), "flat"
    assert from_record(record) == event


def test_every_kind_of_event_is_tested() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


def test_events_of_two_kinds_are_never_equal() -> None:
    """Though both are tuples of the same values."""
    assert Revived(1, 60.0) != Promised(1, 60.0)
    assert not eq(Revived(1, 60.0), Promised(1, 60.0))
    assert Unpinned(1) != (1,)
    assert not ne(Unpinned(1), Unpinned(1))
    assert len({Revived(1, 60.0), Promised(1, 60.0), Revived(1, 60.0)}) == 2


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": "seized", "lease": 1},
        {"kind": "revived", "lease": 1},
        {"kind": "unpinned"},
        {"kind": "granted", "lease": 1, "replica": "s/a", "start": 0, "stop": 4, "ttl_s": 60.0},
    ],
)
def test_another_record_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(LeaseError, match="is no lease event; the journal is damaged"):
        from_record(record)


def test_an_unknown_reason_is_refused() -> None:
    with pytest.raises(LeaseError, match="unknown reason; known: released, expired"):
        from_record({"kind": "returned", "lease": 1, "reason": "bored"})
