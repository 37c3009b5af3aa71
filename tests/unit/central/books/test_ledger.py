"""The ledger: all or nothing at every statement, and clear words when the file is not usable."""

import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pww.central.audit import audit
from pww.central.ledger import Ledger, Transaction
from pww.errors import StateError
from pww.wire import Release


class Killed(BaseException):
    """Stands for a kill between two statements."""


def picture(desk) -> tuple[object, ...]:
    """What of the books is durable."""
    books = desk.books
    return (
        books.round, books.generation, books.state_hash, books.report(),
        books.status()["coverage"], [s.offer for s in books.staged()],
        books.verdicts("s/a"), books.verdicts("s/b"), books._state.last_merged,
        list(books._state.table.leases()), desk.ledger.rows("SELECT key FROM replies"),
        desk.ledger.rows("SELECT incarnation, state FROM members"),
    )  # fmt: skip


def prepared(desk):
    """Two pending deltas, a chained one, and a dead member with a lease and a delta."""
    a, b = desk.site("s/a"), desk.site("s/b")
    first, second = a.deliver(a.acquire()), b.deliver(b.acquire())
    third = b.deliver(b.acquire(), prev=second.delta)
    kept, extra = b.acquire(), a.acquire()
    desk.clock.advance(20.0)
    claims = {"leases": (kept.id,), "deltas": (second.delta,)}

    def register() -> None:
        desk.clock.advance(11.0)  # a central that was started anew takes everybody for alive
        desk.site("s/b", **claims)

    return {
        "close_round": lambda: desk.merge(first, second),
        "reject": lambda: desk.books.reject(second.delta, "nan"),
        "receive": lambda: desk.books.receive(a.offer(extra, prev=first.delta)),
        "turn away": lambda: desk.books.receive(a.offer(extra, prev=first.delta, tokens=0)),
        "acquire": lambda: a.acquire(),
        "register": register,
        "leave": lambda: a.leave(),
        "third": third,
    }


CALLS = ["close_round", "reject", "receive", "turn away", "acquire", "register"]


@pytest.mark.parametrize("call", CALLS)
def test_killed_between_any_two_statements(desk, tmp_path, monkeypatch, call: str) -> None:
    """All of a call is on the disk or nothing, in memory too; then it can be repeated."""
    act = prepared(desk)[call]
    before = picture(desk)
    execute = Transaction.execute
    steps = left = 0
    copy = tmp_path

    def limited(self: Transaction, sql: str, *values: object) -> int:
        nonlocal left
        if left == 0:
            copy.mkdir()
            for name in ("ledger.sqlite", "ledger.sqlite-wal"):
                shutil.copy(desk.folder / name, copy / name)
            raise Killed
        left -= 1
        return execute(self, sql, *values)

    while True:
        left, copy = steps, tmp_path / f"killed-{steps}"
        monkeypatch.setattr(Transaction, "execute", limited)
        try:
            act()
        except Killed:
            monkeypatch.setattr(Transaction, "execute", execute)
            assert picture(desk) == before, "memory did not move"
            desk.books.verify()
            live = desk.ledger, desk.folder
            desk.ledger, desk.folder = None, copy
            books, desk_gate = desk.books, desk.gate
            desk.open()
            assert picture(desk) == before, "what a kill leaves behind is the state before"
            desk.ledger.close()
            (desk.ledger, desk.folder), desk.books, desk.gate = live, books, desk_gate
            steps += 1
            continue
        monkeypatch.setattr(Transaction, "execute", execute)
        break
    assert steps >= 2
    after = picture(desk)
    assert after != before
    desk.restart()
    assert picture(desk) == after


@pytest.mark.parametrize("call", CALLS)
def test_the_disk_refuses(desk, monkeypatch, call: str) -> None:
    """Disk full at any statement: a clear error, no effect, and the call works later."""
    act = prepared(desk)[call]
    before = picture(desk)
    execute = Transaction.execute

    def full(self: Transaction, sql: str, *values: object) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Transaction, "execute", full)
    with pytest.raises(StateError, match=r"disk is full\. Nothing of this request was kept: check"):
        act()
    assert picture(desk) == before
    monkeypatch.setattr(Transaction, "execute", execute)
    act()
    assert picture(desk) != before


def test_a_disk_that_is_really_full(desk) -> None:
    """SQLite's own SQLITE_FULL, wherever in a transaction it comes; with room again all goes on."""
    site = desk.site()
    desk.ledger.rows("PRAGMA max_page_count=1")  # clamped to the present size

    def fill() -> None:
        while True:
            lease = site.acquire()
            desk.books.release(
                Release(replica="s/a", incarnation=site.incarnation, leases=(lease.id,))
            )

    with pytest.raises(StateError, match="database or disk is full"):
        fill()
    desk.books.verify()
    before = picture(desk)
    desk.restart()
    assert picture(desk) == before
    site.acquire()


def test_kill_9_in_a_real_process(tmp_path) -> None:
    """A process that dies inside a transaction leaves the one before."""
    program = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from pww.central.ledger import Ledger
        ledger = Ledger(Path(sys.argv[1]))
        with ledger.transaction() as tx:
            tx.execute("INSERT INTO lease_events (body, wall) VALUES ('first', 0)")
        with ledger.transaction() as tx:
            tx.execute("INSERT INTO lease_events (body, wall) VALUES ('second', 0)")
            os.kill(os.getpid(), 9)
        """
    )
    path = tmp_path / "ledger.sqlite"
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=60)
    assert done.returncode == -9
    ledger = Ledger(path)
    assert ledger.rows("SELECT body FROM lease_events") == [("first",)]
    ledger.close()


def test_settings_that_durability_rests_on(tmp_path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.rows("PRAGMA journal_mode") == [("wal",)]
    assert ledger.rows("PRAGMA synchronous") == [(2,)]
    ledger.close()


def test_readers_see_one_moment(tmp_path) -> None:
    path = tmp_path / "ledger.sqlite"
    writer = Ledger(path)
    reader = Ledger.read_only(path)

    def count() -> object:
        return reader.rows("SELECT COUNT(*) FROM lease_events")[0][0]

    with reader.snapshot():
        assert count() == 0
        with writer.transaction() as tx:
            tx.execute("INSERT INTO lease_events (body, wall) VALUES ('x', 0)")
        assert count() == 0
    assert count() == 1
    with pytest.raises(StateError, match="readonly"), reader.transaction() as tx:
        tx.execute("DELETE FROM lease_events")
    writer.close()
    reader.close()


def test_no_ledger_to_read(tmp_path) -> None:
    with pytest.raises(StateError, match=f"no ledger in {tmp_path}: name the folder of a run"):
        Ledger.read_only(tmp_path / "ledger.sqlite")


def test_a_file_that_is_no_ledger(tmp_path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    for open_ in (Ledger, Ledger.read_only):
        with pytest.raises(StateError, match=r"not a database\. Nothing of this request was kept"):
            open_(path)


def test_a_ledger_of_another_version(tmp_path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=7")
    db.close()
    for open_ in (Ledger, Ledger.read_only):
        with pytest.raises(StateError, match="has schema 7, this pww writes 2: use the version"):
            open_(path)


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(StateError, match="unable to open database file"):
        Ledger(Path("/nonexistent/ledger.sqlite"))


def test_a_failed_query_is_told(tmp_path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with pytest.raises(StateError, match="no such table"):
        ledger.rows("SELECT * FROM moon")
    ledger.close()


def damage(desk, sql: str) -> None:
    """A ledger with a merge and a pending delta, closed, then changed by `sql`."""
    site = desk.site()
    site.contribute(2)
    site.deliver(site.acquire(2))
    with desk.ledger.transaction() as tx:
        assert tx.execute(sql) > 0
    desk.ledger.close()
    desk.ledger = Ledger(desk.folder / "ledger.sqlite")


def start_over(desk) -> None:
    """What the fixture's own check wants: books that are sound."""
    for left in desk.folder.glob("ledger.sqlite*"):
        left.unlink()
    desk.open()


@pytest.mark.parametrize(
    ("table", "sql"),
    [
        ("run", "UPDATE run SET space = '{'"),
        ("run", "UPDATE run SET space = '{}'"),
        ("rounds", "UPDATE rounds SET report = 'x' WHERE round = 1"),
        ("lease_events", "UPDATE lease_events SET body = '[1]' WHERE seq = 2"),
        ("lease_events", "UPDATE lease_events SET body = '{' WHERE seq = 2"),
        ("lease_events", "DELETE FROM lease_events WHERE seq = 1"),
        ("deltas", "UPDATE deltas SET offer = '{}'"),
        ("snapshot", "INSERT INTO snapshot VALUES (1, 1, '{}')"),
        ("snapshot", "INSERT INTO snapshot VALUES (1, 1, '{\"table\": 3}')"),
    ],
)
def test_damaged_rows_are_a_sentence_at_the_start_and_in_an_audit(desk, table, sql) -> None:
    damage(desk, sql)
    with pytest.raises(StateError, match=r"ledger .* cannot be read .*Restore a copy"):
        desk.open()
    if table in ("run", "deltas"):
        with pytest.raises(StateError, match="cannot be read"):
            audit(desk.folder)
    else:  # neither reports nor snapshots are looked at
        assert bool(audit(desk.folder).faults) == (table == "lease_events")
    start_over(desk)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DELETE FROM lease_events WHERE body LIKE '%committed%'", "do not match"),
        ("DELETE FROM deltas WHERE outcome IS NULL", "do not match"),
        ("UPDATE run SET round = 0", "the run is at round 0, on record is 1"),
        ("DELETE FROM rounds", "the run is at round 1, on record is None"),
    ],
)
def test_a_ledger_that_lost_rows_is_not_served(desk, sql: str, told: str) -> None:
    damage(desk, sql)
    with pytest.raises(StateError, match=told):
        desk.open()
    start_over(desk)
