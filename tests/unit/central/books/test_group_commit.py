"""Calls that share a transaction: all durable or none, and memory is never ahead of the disk."""

import asyncio
import logging
import threading

import pytest

from pww.central import state as pww_state
from pww.central.batcher import Batcher
from pww.central.ledger import Ledger
from pww.central.state import Inconsistent
from pww.errors import Refused, StateError
from pww.wire import Acquire, Acquired, Done, Release


def who(site) -> dict[str, str]:
    return {"replica": site.replica, "incarnation": site.incarnation}


def acquire(site, number: int, blocks: int = 2) -> Acquire:
    return Acquire(
        **who(site), key=f"{number:032x}", num_blocks=blocks, ttl_s=30.0
    )  # fmt: skip


def test_each_call_of_a_batch_sees_the_ones_before_it(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    replies = desk.books.answer([acquire(a, 1), acquire(b, 2), acquire(a, 1), acquire(b, 3)])
    spans = [r.answer.lease.span for r in replies]
    assert [(s.start, s.stop) for s in spans] == [(0, 2), (2, 4), (0, 2), (4, 6)]
    status = desk.books.status()
    desk.restart()
    again = desk.books.status()
    assert again["coverage"] == status["coverage"]


def test_one_commit_for_all_of_them(desk) -> None:
    site = desk.site()
    commits: list[str] = []
    desk.ledger._db.set_trace_callback(lambda sql: commits.append(sql) if "COMMIT" in sql else None)
    desk.books.answer([acquire(site, number) for number in range(1, 9)])
    assert commits == ["COMMIT"]


def test_a_refusal_in_the_middle_changes_nothing_for_the_others(desk) -> None:
    a, b = desk.site("s/a"), desk.site("s/b")
    stranger = Release(replica="s/a", incarnation="9" * 32, leases=(1,))
    first, refused, twin, last = desk.books.answer(
        [acquire(a, 1), stranger, acquire(b, 1), acquire(b, 2)]
    )
    assert isinstance(refused, Refused)
    assert refused.code == "unknown_incarnation"
    assert isinstance(twin, Refused), "the key is another's"
    assert [r.answer.lease.span.start for r in (first, last)] == [0, 2]
    desk.restart()
    assert desk.coverage() == (0, 4, 16)


class FullDisk(Exception):
    """Not SQLite's, so that a test sees that any failure is treated alike."""


def in_a_batch_that_fails(desk, *calls) -> None:
    with desk.books._batch():
        for call in calls:
            desk.books._leasing.answer(call)
        raise FullDisk


def test_a_batch_that_fails_leaves_memory_as_the_disk_is(desk) -> None:
    site, other = desk.site("s/a"), desk.site("s/b")
    held = site.acquire(3)
    told, before = list(desk.gate.seen), desk.coverage()
    back = Release(**who(site), leases=(held.id,))
    with pytest.raises(FullDisk):
        in_a_batch_that_fails(desk, acquire(other, 1000), back)
    assert desk.coverage() == before
    assert desk.gate.seen == told
    desk.books.verify()
    anew = other.acquire(2)
    assert (anew.span.start, anew.id) == (3, held.id + 1), "ids and positions were not used up"


def test_a_full_disk_is_said_and_nothing_of_the_batch_stays(desk) -> None:
    site = desk.site()
    site.acquire(3, key="e" * 32)
    db = desk.ledger._db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count={pages}")  # a full disk, as SQLite sees it
    leases = tuple(range(2, 3000))

    def fill() -> None:
        for number in range(1000, 3000):
            desk.books.answer([acquire(site, 100 * number + i, 1) for i in range(17)])
            desk.books.answer([Release(**who(site), leases=leases)])

    with pytest.raises(StateError, match="database or disk is full"):
        fill()
    db.execute("PRAGMA max_page_count=1000000")
    desk.books.verify()
    before = desk.books._state.table.dump()
    desk.restart()
    assert desk.books._state.table.dump() == before, "memory was as the disk is"


def test_a_dead_member_that_comes_back_in_a_failed_batch_is_not_announced(desk) -> None:
    site = desk.site()
    desk.clock.advance(11.0)
    desk.books.tick()
    told = list(desk.gate.seen)
    assert told[-1] == ("left", site.incarnation)
    with pytest.raises(FullDisk):
        in_a_batch_that_fails(desk, acquire(site, 1))
    assert desk.gate.seen == told
    site.beat()
    assert desk.gate.seen == [*told, ("joined", site.incarnation)], "once, when it was durable"


def test_a_bug_in_one_call_is_not_the_others_trouble(desk, monkeypatch, caplog) -> None:
    site = desk.site()
    real = desk.books._leasing.acquire

    def broken(message: Acquire, /) -> Acquired:
        if message.num_blocks == 7:
            raise RuntimeError("a bug")
        return real(message)

    monkeypatch.setattr(desk.books._leasing, "acquire", broken)
    with caplog.at_level(logging.ERROR):
        good, bad, more = desk.books.answer(
            [acquire(site, 1), acquire(site, 2, 7), acquire(site, 3)]
        )
    assert isinstance(bad, StateError)
    assert "Acquire failed (RuntimeError); see the log" in str(bad)
    assert [r.answer.lease.span.start for r in (good, more)] == [0, 2]
    assert "a bug" in caplog.text
    desk.restart()
    assert desk.coverage() == (0, 4, 16)


def test_a_change_that_memory_cannot_follow_ends_its_batch(desk) -> None:
    site = desk.site()
    lease = site.acquire(3)

    def effect() -> None:
        raise Refused("no", code="closed")

    def change() -> None:
        state = desk.books._state
        with state.change() as change:
            change.lease(state.table.decide_return([lease.id], replica="s/a", reason="released"))
            change.then(effect)

    with pytest.raises(Inconsistent, match="a change cannot be made: no"):
        change()
    assert desk.coverage() == (0, 3, 17)


def test_a_restart_reads_a_snapshot_and_what_came_after(desk, monkeypatch) -> None:
    monkeypatch.setattr(pww_state, "SNAPSHOT_EVENTS", 10)
    site = desk.site()
    for _ in range(3):
        site.contribute(2)
    for number in range(9):
        site.release(site.acquire(1, key=f"{900 + number:032x}"))
    kept = site.acquire(2, key="f" * 32)
    seq, events = desk.ledger.rows(
        "SELECT (SELECT seq FROM snapshot), (SELECT MAX(seq) FROM lease_events)"
    )[0]
    assert 0 < events - seq < 12
    table = desk.books._state.table.dump()
    windows = desk.books.committed_windows
    desk.restart()
    desk.books.verify()
    again = desk.books._state.table.dump()
    assert again == table
    assert desk.books.committed_windows == windows
    assert site.acquire(2, key="f" * 32).id == kept.id
    # nothing before the snapshot is read
    desk.ledger.close()
    ledger = Ledger(desk.folder / "ledger.sqlite")
    with ledger.transaction() as tx:
        tx.execute("UPDATE lease_events SET body = 'damaged' WHERE seq <= ?", seq)
    ledger.close()
    desk.open()
    assert desk.books._state.table.dump() == again


def test_the_batcher_answers_all_and_shares_commits() -> None:
    batches: list[int] = []
    enough = threading.Event()

    def answer(calls):
        enough.wait(30)
        batches.append(len(calls))
        return [
            Refused("odd", code="closed") if int(c.incarnation, 16) % 2 else Done() for c in calls
        ]

    async def main() -> list[object]:
        batcher = Batcher(answer)
        calls = [Release(replica="s/a", incarnation=f"{i:032x}", leases=()) for i in range(100)]
        tasks = [asyncio.create_task(batcher.answer(call)) for call in calls]
        await asyncio.sleep(0)
        tasks[3].cancel()  # a client that hung up
        enough.set()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        batcher.close()
        return replies

    replies = asyncio.run(main())
    assert isinstance(replies[3], asyncio.CancelledError)
    del replies[3]
    assert sum(isinstance(r, Refused) for r in replies) == 49
    assert sum(isinstance(r, Done) for r in replies) == 50
    assert len(batches) <= 2, "they waited together"


@pytest.mark.parametrize("fault", [StateError("no disk"), RuntimeError("bug")])
def test_a_batch_that_fails_is_told_to_all_its_callers(fault: Exception) -> None:
    def answer(calls):
        raise fault

    async def main() -> list[object]:
        batcher = Batcher(answer)
        call = Release(replica="s/a", incarnation="1" * 32, leases=())
        replies = await asyncio.gather(*(batcher.answer(call) for _ in range(3)),
                                       return_exceptions=True)  # fmt: skip
        batcher.close()
        return replies

    replies = asyncio.run(main())
    assert all(isinstance(reply, StateError) for reply in replies)
    expected = "no disk" if isinstance(fault, StateError) else "could not be answered: RuntimeError"
    assert all(expected in str(reply) for reply in replies)
