"""The ledger: one SQLite file that is the truth of a run; a transaction is durable or did not
happen.

WAL with `synchronous=FULL`: when `transaction()` ends, its rows are on the disk; a kill at any
instruction before leaves none of them. One connection under one lock writes (`BEGIN IMMEDIATE`), so
threads queue instead of failing with "database is locked"; other processes may read meanwhile.

Who may open a run's folder is decided by its lock (`pww.folder.owned`), not here.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pww.errors import LeaseError, StateError

FILE = "ledger.sqlite"
SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE run (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    run TEXT NOT NULL, space TEXT NOT NULL, model TEXT NOT NULL,
    round INTEGER NOT NULL, generation TEXT NOT NULL, state_hash TEXT NOT NULL,
    created_wall REAL NOT NULL
);
CREATE TABLE members (
    incarnation TEXT PRIMARY KEY, replica TEXT NOT NULL, node_key TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('live', 'gone', 'left', 'replaced')),
    versions TEXT NOT NULL, registered_wall REAL NOT NULL, fit REAL NOT NULL
);
CREATE UNIQUE INDEX one_member_a_replica ON members (replica) WHERE state != 'replaced';
CREATE TABLE lease_events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL, wall REAL NOT NULL
);
CREATE TABLE snapshot (
    only INTEGER PRIMARY KEY CHECK (only = 1), seq INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE TABLE replies (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, incarnation TEXT NOT NULL,
    num_blocks INTEGER NOT NULL, lease INTEGER NOT NULL
);
CREATE INDEX replies_by_incarnation ON replies (incarnation, seq);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, generation TEXT NOT NULL, state_hash TEXT NOT NULL,
    report TEXT, wall REAL NOT NULL, tokens_total INTEGER NOT NULL
);
CREATE TABLE deltas (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, delta TEXT NOT NULL UNIQUE,
    replica TEXT NOT NULL, incarnation TEXT NOT NULL, staleness INTEGER NOT NULL,
    offer TEXT NOT NULL, received_wall REAL NOT NULL,
    outcome TEXT CHECK (outcome IN ('merged', 'rejected')),
    round INTEGER, reason TEXT NOT NULL DEFAULT '', decided INTEGER UNIQUE,
    CHECK ((outcome IS NULL) = (round IS NULL) AND (outcome IS NULL) = (decided IS NULL))
);
CREATE INDEX deltas_by_replica ON deltas (replica, decided);
CREATE INDEX deltas_in_order ON deltas (replica, seq);
CREATE INDEX deltas_by_incarnation ON deltas (incarnation);
CREATE INDEX deltas_merged ON deltas (replica, decided) WHERE outcome = 'merged';
CREATE INDEX deltas_undecided ON deltas (seq) WHERE outcome IS NULL;
"""

Value = str | int | float | None


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """What the block reads from the ledger at `path` can be read.

    Raises:
        StateError: rows are there that no pww of this version wrote.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, LeaseError) as why:
        told = str(why).partition("\n")[0]  # pydantic's goes on for many lines
        raise StateError(
            f"ledger {path} cannot be read ({type(why).__name__}: {told:.200}): damaged, or of "
            "another version of pww. Restore a copy of the state folder, or start a new run with "
            "run.name=…"
        ) from why


class Transaction:
    """What may be written between BEGIN and COMMIT."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def execute(self, sql: str, *values: Value) -> int:
        """Runs one statement and returns the number of rows that it changed."""
        return self._db.execute(sql, values).rowcount

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """The statements of the block happen together or not at all, within the transaction.

        What the database itself refuses ends the whole transaction.
        """
        self._db.execute("SAVEPOINT part")
        try:
            yield
        except sqlite3.Error:
            raise
        except BaseException:
            self._db.execute("ROLLBACK TO part")
            self._db.execute("RELEASE part")
            raise
        self._db.execute("RELEASE part")


class Ledger:
    """An open ledger; made when it is not there yet."""

    def __init__(self, path: Path) -> None:
        self._open(path, read_only=False)
        try:
            version = self.rows("PRAGMA user_version")[0][0]
            if version == 0 and not self.rows("SELECT 1 FROM sqlite_master"):
                self._db.execute("PRAGMA journal_mode=WAL")
                script = f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
                self._db.executescript(script)
            self._check_version()
            self._db.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error as why:
            self.close()
            raise self._unusable(why) from why
        except StateError:
            self.close()
            raise

    @classmethod
    def read_only(cls, path: Path) -> "Ledger":
        """An existing ledger to look at, while its central runs or afterwards.

        Raises:
            StateError: there is none, or it cannot be read.
        """
        ledger = cls.__new__(cls)
        ledger._open(path, read_only=True)
        try:
            ledger._check_version()
        except StateError:
            ledger.close()
            raise
        return ledger

    def _open(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self._lock = threading.RLock()
        if read_only and not path.is_file():
            raise StateError(
                f"no ledger in {path.parent}: name the folder of a run that leased something"
            )
        try:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=10.0,
            )
        except sqlite3.Error as why:
            raise self._unusable(why) from why

    def close(self) -> None:
        """Closes the file; what was committed stays."""
        with self._lock:
            self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """All statements of the block become durable together, at its end, or none does.

        Raises:
            StateError: the disk refused; nothing was kept.
        """
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield Transaction(self._db)
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as why:
                raise self._unusable(why) from why

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads of the block see one moment, whatever is written meanwhile."""
        with self._lock:
            self.rows("BEGIN")
            try:
                yield
            finally:
                self.rows("ROLLBACK")

    def rows(self, sql: str, *values: Value) -> Sequence[tuple[Value, ...]]:
        """The rows of one query.

        Raises:
            StateError: the file cannot be read.
        """
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.Error as why:
                raise self._unusable(why) from why

    def each(self, sql: str) -> Iterator[tuple[Value, ...]]:
        """The rows of one query one by one, however many there are; use it in a `snapshot`.

        Raises:
            StateError: the file cannot be read.
        """
        try:
            yield from self._db.execute(sql)
        except sqlite3.Error as why:
            raise self._unusable(why) from why

    def _check_version(self) -> None:
        version = self.rows("PRAGMA user_version")[0][0]
        if version != SCHEMA_VERSION:
            raise StateError(
                f"ledger {self.path} has schema {version}, this pww writes {SCHEMA_VERSION}: use "
                "the version of pww that made it, or start a new run with run.name=..."
            )

    def _unusable(self, why: sqlite3.Error) -> StateError:
        return StateError(
            f"ledger {self.path}: {why}. Nothing of this request was kept: check free space and "
            "permissions of its folder and try again, or restore the file from a copy"
        )
