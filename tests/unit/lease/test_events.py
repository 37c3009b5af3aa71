"""Events and their journal form."""

import json

import pytest

from pww.errors import LeaseError
from pww.lease.events import (
    Committed,
    Event,
    Granted,
    Pinned,
    Promised,
    Returned,
    Revived,
    Unpinned,
    from_record,
    to_record,
)

EVENTS: list[Event] = [
    Granted(1, "lumi/a", 0, 4, 4, 60.0),
    Revived(1, 60.0),
    Promised(1, 75.0),
    Pinned(1, "d" * 32),
    Unpinned(1),
    Returned(1, "taken over"),
    Committed(1, "d" * 32, "lumi/a", 0, 4),
]


@pytest.mark.parametrize("event", EVENTS)
def test_through_the_journal_and_back(event: Event) -> None:
    assert from_record(json.loads(json.dumps(to_record(event)))) == event


@pytest.mark.parametrize(
    "record",
    [{}, {"kind": "seized", "lease": 1}, {"kind": "revived", "lease": 1}, {"kind": "unpinned"}],
)
def test_another_record_is_refused(record: dict[str, object]) -> None:
    with pytest.raises(LeaseError, match="is no lease event; the journal is damaged"):
        from_record(record)


def test_an_unknown_reason_is_refused() -> None:
    with pytest.raises(LeaseError, match="unknown reason; known: released, expired"):
        from_record({"kind": "returned", "lease": 1, "reason": "bored"})
