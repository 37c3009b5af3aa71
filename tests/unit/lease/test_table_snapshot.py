"""A dump holds all that a journal would lead to, and a damaged one is refused."""

import json

import pytest
from lease_driver import D, Driver, E

from pww.errors import LeaseError
from pww.lease.events import Event, Quarantined
from pww.lease.table import LeaseTable


def eventful() -> Driver:
    """A table with everything in it: live, ahead, pinned, lapsed, quarantined, attempts."""
    t = Driver(LeaseTable(60, epoch_positions=30, max_attempts=2))
    for _ in range(2):
        t.grant("s/a", 3)
        t.do(t.table.decide_expiry(1e9))
    t.do(t.table.decide_grant("s/b", num_blocks=4, ttl_s=10.0))
    t.commit(D, *t.table.leases("s/b"))
    t.grant("s/c", 5, ahead=True)
    t.do(t.table.decide_steal("s/b", num_blocks=9, ttl_s=10.0, rates={}))
    first = t.grant("s/b", 2)
    t.do(t.table.decide_promise(first.id, ttl_s=40.0))
    late = t.grant("s/b", 2)
    t.pin(E, late, first)
    t.grant("s/a", 4, ttl_s=1.0)
    t.grant("s/a", 4, ttl_s=1.0, ahead=True)
    t.do(t.table.decide_expiry(5.0))
    t.grant("s/a", 2)
    return t


def through_json(table: LeaseTable) -> LeaseTable:
    return LeaseTable.load(json.loads(json.dumps(table.dump())), max_attempts=2)


def replayed(table: LeaseTable, events: list[Event]) -> LeaseTable:
    for event in events:
        table.apply(event, 0.0)
    return table


def test_a_snapshot_anywhere_in_the_journal_leads_to_the_same_table() -> None:
    journal = eventful().journal
    whole = replayed(LeaseTable(60, epoch_positions=30), journal)
    assert any(isinstance(event, Quarantined) for event in journal)
    for k in range(len(journal) + 1):
        half = through_json(replayed(LeaseTable(60, epoch_positions=30), journal[:k]))
        half.verify()
        table = replayed(half, journal[k:])
        assert table.dump() == whole.dump()
        assert table.decide_commit(E) == whole.decide_commit(E)
        assert table.leased == whole.leased


def test_what_is_loaded_decides_as_what_was_dumped() -> None:
    t = eventful()
    again = through_json(t.table)
    for decide in (
        lambda table: table.decide_grant("s/a", num_blocks=9, ttl_s=1.0),
        lambda table: table.decide_steal("s/a", num_blocks=9, ttl_s=1.0, rates={}),
        lambda table: table.decide_revive(range(20), replica="s/a", ttl_s=1.0),
        lambda table: table.decide_raise(range(20), replica="s/c"),
        lambda table: table.decide_commit(E),
        lambda table: [table.decide_promise(h.id, ttl_s=45.0) for h in table.leases()],
        lambda table: (table.complete, table.leased, list(table.leases()), table.committed_by),
    ):
        assert decide(again) == decide(t.table)
    assert list(again.attempts) == list(t.table.attempts) != []
    assert again.max_attempts == t.table.max_attempts


def test_nothing_expires_between_a_load_and_its_restore() -> None:
    again = through_json(eventful().table)
    assert again.decide_expiry(1e12) == ()
    again.restore(now_s=100.0, grace_s=20.0)
    left_s = {held.id: again.remaining_s(held.id, 100.0) for held in again.leases()}
    renewed = min(held.id for held in again.leases() if held.pinned)
    assert left_s == {lease: 50.0 if lease == renewed else 20.0 for lease in left_s}
    assert again.decide_expiry(119.9) == ()
    assert len(again.decide_expiry(120.0)) == sum(not held.pinned for held in again.leases())


def test_a_dump_is_no_window_into_the_table() -> None:
    t = eventful()
    dump = t.table.dump()
    before = json.dumps(dump)
    t.grant("s/z", 3)
    t.do(t.table.decide_commit(E))
    assert json.dumps(dump) == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 99}, "version 99, not 1"),
        ({"unassigned": [0, 5, 3, 9]}, "interval bounds do not rise"),
        ({"attempts": [0, 5]}, "counts of attempts are out of order"),
        ({"committed": "lost"}, ""),
        ({"leases": [[1, "s/a", 0, 4]]}, ""),
        ({"lapsed": [[1]]}, ""),
        ({"lapsed": None}, ""),
        ({"committed_by": 7}, ""),
    ],
)
def test_a_damaged_snapshot_is_refused(change: dict[str, object], why: str) -> None:
    dump = eventful().table.dump() | change
    with pytest.raises(LeaseError, match=f"no snapshot of a lease table .{why}.*; it is damaged"):
        LeaseTable.load(dump)


def test_a_snapshot_without_a_part_is_refused() -> None:
    for name in (dump := eventful().table.dump()):
        with pytest.raises(LeaseError, match=r"no snapshot of a lease table.*replay the journal"):
            LeaseTable.load({key: value for key, value in dump.items() if key != name})
