"""The run in memory, a mirror of the ledger; whoever sees a change may count on it being durable.

`batch()` is one transaction under the lock; every `change()` in it moves the table and the fields
at once, so that the next one is decided from there, and nothing of it may be told before the batch
has ended. If the disk refuses at the end, memory is read from the ledger again, as after a restart.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

from pww.central.ledger import Ledger, Transaction, intact
from pww.central.membership import Member, Seat
from pww.central.replies import Replies
from pww.clock import Clock
from pww.errors import LeaseError, PwwError, StateError
from pww.lease.events import Committed, Event, from_record, to_record
from pww.lease.space import BlockSpace
from pww.lease.table import LeaseTable
from pww.wire import Message, Offer, RoundReport, SpaceInfo, Span

NAMED = 1000
"""Quarantined blocks that are named; more are only counted."""
SNAPSHOT_EVENTS = 10_000
"""A restart replays about so many events; a table of more fragments is written less often."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A received delta without a verdict. `staleness` is fixed; `received_s` is monotonic."""

    offer: Offer
    staleness: int
    received_s: float


class Change:
    """One part of a transaction in the making."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.events: list[Event] = []
        self.effects: list[Callable[[], object]] = []
        self.news: list[Callable[[], object]] = []

    def lease(self, events: Iterable[Event]) -> None:
        """These happen to the lease table; decide them all from the state before the change."""
        self.events.extend(events)

    def then(self, effect: Callable[[], object]) -> None:
        """`effect` on memory follows when the statements are done and the table has moved."""
        self.effects.append(effect)

    def told(self, news: Callable[[], object]) -> None:
        """`news` are for others: they follow, in order, when all of the batch is durable."""
        self.news.append(news)


class Inconsistent(RuntimeError):
    """A change that memory could not follow: a bug of ours. Nothing of its batch happened."""


class State:
    """Everything the coordinator knows. Read and change it under `lock` only."""

    def __init__(
        self,
        ledger: Ledger,
        space: BlockSpace,
        *,
        clock: Clock,
        restore_grace_s: float,
        max_attempts: int,
        new_run: Callable[[], str],
    ) -> None:
        self.lock = threading.RLock()
        self.ledger, self.space, self.clock = ledger, space, clock
        self._grace_s, self._max_attempts = restore_grace_s, max_attempts
        self._tx: Transaction | None = None
        self._moved = False  # memory is ahead of the disk
        self._news: list[Callable[[], object]] = []
        self._lost = False  # … and stays so: the ledger could not be read again
        self.report: RoundReport | None = None
        self.retries = 0  # of the aggregator, told with its rounds, since this process began
        with intact(ledger.path):
            self._ensure_run(new_run)
        self._load()

    def merged(self, report: RoundReport) -> None:
        """Takes note of a round that is durable."""
        self.report = report
        self.retries += report.retries

    @contextmanager
    def batch(self) -> Iterator[bool]:
        """All changes of the block become durable together, at its end. One in another joins it.

        Gives whether it is a batch of its own.

        Raises:
            StateError: the disk refused; nothing of it happened.
        """
        with self.lock:
            if self._tx is not None:
                yield False
                return
            if self._lost:
                self._load()
            try:
                with self.ledger.transaction() as tx:
                    self._tx = tx
                    try:
                        yield True
                        fragments = len(self.table.unassigned) + len(self.table.committed)
                        if self._journaled >= max(SNAPSHOT_EVENTS, fragments):
                            self._write_snapshot(tx)
                    finally:
                        self._tx = None
            except BaseException:
                self._lost = self._moved
                if self._lost:
                    self._load()
                raise
            else:
                for news in self._news:
                    news()
            finally:
                self._moved = False
                self._news.clear()

    @contextmanager
    def change(self) -> Iterator[Change]:
        """One change, alone or as a part of a batch: if its block raises, it has no effect."""
        with self.lock, self.batch() as alone:
            assert self._tx is not None
            change = Change(self._tx)
            with nullcontext() if alone else self._tx.savepoint():
                yield change
                for event in change.events:
                    self._tx.execute(
                        "INSERT INTO lease_events (body, wall) VALUES (?, ?)",
                        json.dumps(to_record(event)),
                        self.clock.wall(),
                    )
            self._moved = True
            self._journaled += len(change.events)
            now_s = self.clock.monotonic()
            try:
                for event in change.events:
                    self._apply(event, now_s)
                for effect in change.effects:
                    effect()
            except PwwError as why:  # half of it is in memory: none of the batch may stay
                raise Inconsistent(f"a change cannot be made: {why}") from why
            self._news += change.news

    def hash_of(self, round_: int) -> str:
        """The state hash of theta_outer of that round, "" if there is no such round."""
        rows = self.ledger.rows("SELECT state_hash FROM rounds WHERE round = ?", round_)
        return str(rows[0][0]) if rows else ""

    def quarantined_blocks(self) -> tuple[int, ...]:
        """The first blocks that were set aside, by position."""
        return self.space.first_blocks(self.table.quarantined, at_most=NAMED)

    def _apply(self, event: Event, now_s: float) -> None:
        self.table.apply(event, now_s)
        if isinstance(event, Committed):
            span = Span(event.start, event.stop)
            self.committed_windows += self.space.num_span_windows(span)

    def _write_snapshot(self, tx: Transaction) -> None:
        body = {"table": self.table.dump(), "committed_windows": self.committed_windows}
        tx.execute(
            "INSERT OR REPLACE INTO snapshot "
            "VALUES (1, (SELECT COALESCE(MAX(seq), 0) FROM lease_events), ?)",
            json.dumps(body),
        )
        self._journaled = 0

    # ----------------------------------------------------------------------------- opening a ledger

    def _ensure_run(self, new_run: Callable[[], str]) -> None:
        """Binds a new ledger to the space, or checks that an old one is of this space.

        Raises:
            StateError: it is of another one.
        """
        rows = self.ledger.rows("SELECT space FROM run")
        if not rows:
            with self.ledger.transaction() as tx:
                tx.execute(
                    "INSERT INTO run VALUES (1, ?, ?, '', 0, '', '', ?)",
                    new_run(),
                    self.space.info().model_dump_json(),
                    self.clock.wall(),
                )
            return
        theirs, ours = SpaceInfo.model_validate_json(str(rows[0][0])), self.space.info()
        if theirs != ours:
            both = differences(theirs, ours, left="ledger", right="now")
            raise StateError(
                f"ledger {self.ledger.path} belongs to a run over other data or other leases "
                f"({both}): go on with the settings of that run, or start a new "
                "one with run.name=..."
            )

    def _load(self) -> None:
        """Fields and table from the ledger; leases and members get the grace period.

        Raises:
            StateError: the ledger is damaged.
        """
        with intact(self.ledger.path):
            now_s = self.clock.monotonic()
            self._load_run()
            self._load_table(now_s)
            self._load_seats(now_s)
            self._load_deltas(now_s)
            self._check()
            self.replies = Replies(self.ledger)
        self._lost = False

    def _load_run(self) -> None:
        rows = self.ledger.rows("SELECT run, model, round, generation, state_hash FROM run")
        run, model, number, generation, state_hash = rows[0]
        self.run, self.model = str(run), str(model)
        self.round = cast(int, number)
        self.generation, self.state_hash = str(generation), str(state_hash)
        reports = self.ledger.rows(
            "SELECT report FROM rounds WHERE report IS NOT NULL ORDER BY round DESC LIMIT 1"
        )
        self.report = RoundReport.model_validate_json(str(reports[0][0])) if reports else None

    def _check(self) -> None:
        """What the parts of the ledger say of each other.

        Raises:
            LeaseError: they contradict each other: rows were lost.
        """
        newest = cast(int | None, self.ledger.rows("SELECT MAX(round) FROM rounds")[0][0])
        if (newest or 0) != self.round or (newest is None) != (self.generation == ""):
            raise LeaseError(f"the run is at round {self.round}, on record is {newest}")
        pinned = {held.pinned for held in self.table.leases() if held.pinned}
        if pinned != self.pending.keys():
            odd = ", ".join(sorted(pinned ^ self.pending.keys()))
            raise LeaseError(f"leases and deltas without a verdict do not match: {odd}")

    def _load_table(self, now_s: float) -> None:
        """The last snapshot and what was journaled since."""
        found = self.ledger.rows("SELECT seq, body FROM snapshot")
        seq = 0
        if found:
            seq, body = cast(int, found[0][0]), json.loads(str(found[0][1]))
            self.table = LeaseTable.load(body["table"], max_attempts=self._max_attempts)
            self.committed_windows = int(body["committed_windows"])
        else:
            self.table = LeaseTable(
                self.space.num_positions,
                epoch_positions=self.space.num_blocks,
                max_attempts=self._max_attempts,
            )
            self.committed_windows = 0
        rows = self.ledger.rows("SELECT body FROM lease_events WHERE seq > ? ORDER BY seq", seq)
        for (body,) in rows:
            self._apply(from_record(json.loads(str(body))), now_s)
        self._journaled = len(rows)
        self.table.restore(now_s=now_s, grace_s=self._grace_s)
        self.table.verify()

    def _load_seats(self, now_s: float) -> None:
        self.seats: dict[str, Seat] = {}
        for replica, incarnation, node_key, state, fit in self.ledger.rows(
            "SELECT replica, incarnation, node_key, state, fit FROM members "
            "WHERE state != 'replaced' ORDER BY replica"
        ):
            member = Member(str(replica), str(incarnation), str(node_key))
            self.seats[member.replica] = Seat(
                member,
                state,  # type: ignore[arg-type]
                seen_s=now_s,
                grace_s=self._grace_s,
                fit=cast(float, fit),
            )

    def _load_deltas(self, now_s: float) -> None:
        self.pending: dict[str, Staged] = {}  # in order of receipt
        for offer_json, staleness in self.ledger.rows(
            "SELECT offer, staleness FROM deltas WHERE outcome IS NULL ORDER BY seq"
        ):
            offer = Offer.model_validate_json(str(offer_json))
            self.pending[offer.delta] = Staged(offer, cast(int, staleness), now_s)
        self.last_merged: dict[str, str] = {}
        # by index: the list of all deltas is as long as the run
        for replica, seat in self.seats.items():
            for (delta,) in self.ledger.rows(
                "SELECT delta FROM deltas WHERE replica = ? AND outcome = 'merged' "
                "ORDER BY decided DESC LIMIT 1",
                replica,
            ):
                self.last_merged[replica] = str(delta)
            for offer_json, staleness in self.ledger.rows(
                "SELECT offer, staleness FROM deltas WHERE replica = ? ORDER BY seq DESC LIMIT 1",
                replica,
            ):
                seat.last = Offer.model_validate_json(str(offer_json))
                seat.staleness = cast(int, staleness)
                per_s = seat.last.metrics.tokens_per_s / max(self.space.window_tokens - 1, 1)
                seat.windows_per_s = per_s


def as_text(message: Message) -> str:
    """JSON that `model_validate_json` reads back to the same message."""
    return json.dumps(message.model_dump(mode="json"))


def differences(a: SpaceInfo, b: SpaceInfo, *, left: str, right: str) -> str:
    """The fields in which two spaces differ, both values each."""
    rows = (
        f"{name}: {left} {getattr(a, name)}, {right} {getattr(b, name)}"
        for name in SpaceInfo.model_fields
        if name != "digest" and getattr(a, name) != getattr(b, name)
    )
    return "; ".join(rows) or f"digest: {left} {a.digest}, {right} {b.digest}"
