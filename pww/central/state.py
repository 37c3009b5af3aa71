"""The run in memory, a mirror of the ledger: every change is durable first and visible after.

`change()` is the only way to write: its statements and lease events are one transaction; the
table and the fields follow when it is on the disk. If anything raises before, neither the file
nor memory moved.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from pww.central.ledger import Ledger, Transaction
from pww.central.membership import Member, Seat
from pww.clock import Clock
from pww.errors import StateError
from pww.lease.events import Committed, Event, from_record, to_record
from pww.lease.space import BlockSpace
from pww.lease.table import LeaseTable
from pww.wire import Message, Offer, RoundReport, SpaceInfo, Span


@dataclass(frozen=True, slots=True)
class Staged:
    """A received delta without a verdict. `staleness` is fixed; `received_s` is monotonic."""

    offer: Offer
    staleness: int
    received_s: float


class Change:
    """One transaction in the making."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.events: list[Event] = []
        self.effects: list[Callable[[], object]] = []

    def lease(self, events: Iterable[Event]) -> None:
        """These happen to the lease table; decide them all from the state before the change."""
        self.events.extend(events)

    def then(self, effect: Callable[[], object]) -> None:
        """`effect` on memory follows once the transaction is durable and the table has moved."""
        self.effects.append(effect)


class State:
    """Everything the coordinator knows. Read and change it under `lock` only."""

    def __init__(
        self,
        ledger: Ledger,
        space: BlockSpace,
        *,
        clock: Clock,
        restore_grace_s: float,
        new_run: Callable[[], str],
    ) -> None:
        self.lock = threading.RLock()
        self.ledger, self.space, self.clock = ledger, space, clock
        self._ensure_run(new_run)
        self._load(restore_grace_s=restore_grace_s)

    @contextmanager
    def change(self) -> Iterator[Change]:
        """One durable change; raises without any effect, or has all of it."""
        with self.lock:
            with self.ledger.transaction() as tx:
                change = Change(tx)
                yield change
                for event in change.events:
                    tx.execute(
                        "INSERT INTO lease_events (body, wall) VALUES (?, ?)",
                        json.dumps(to_record(event)),
                        self.clock.wall(),
                    )
            now_s = self.clock.monotonic()
            for event in change.events:
                self._apply(event, now_s)
            for effect in change.effects:
                effect()

    def _apply(self, event: Event, now_s: float) -> None:
        self.table.apply(event, now_s)
        if isinstance(event, Committed):
            span = Span(event.start, event.stop)
            self.committed_windows += self.space.num_span_windows(span)

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
                f"({both}): go on with the settings of that run,  or start a new "
                "one with run.name=..."
            )

    def _load(self, *, restore_grace_s: float) -> None:
        """Fields and table from the ledger; leases and members get the grace period."""
        rows = self.ledger.rows("SELECT run, model, round, generation, state_hash FROM run")
        run, model, number, generation, state_hash = rows[0]
        self.run, self.model = str(run), str(model)
        self.round = cast(int, number)
        self.generation, self.state_hash = str(generation), str(state_hash)
        reports = self.ledger.rows(
            "SELECT report FROM rounds WHERE report IS NOT NULL ORDER BY round DESC LIMIT 1"
        )
        self.report = RoundReport.model_validate_json(str(reports[0][0])) if reports else None
        now_s = self.clock.monotonic()
        self.table = LeaseTable(self.space.num_positions, epoch_positions=self.space.num_blocks)
        self.committed_windows = 0
        for (body,) in self.ledger.rows("SELECT body FROM lease_events ORDER BY seq"):
            self._apply(from_record(json.loads(str(body))), now_s)
        self.table.restore(now_s=now_s, grace_s=restore_grace_s)
        self.table.verify()
        self.seats: dict[str, Seat] = {}
        for replica, incarnation, node_key, state in self.ledger.rows(
            "SELECT replica, incarnation, node_key, state FROM members WHERE state != 'replaced' "
            "ORDER BY replica"
        ):
            member = Member(str(replica), str(incarnation), str(node_key))
            self.seats[member.replica] = Seat(
                member,
                state,  # type: ignore[arg-type]
                seen_s=now_s,
                grace_s=restore_grace_s,
            )
        self.pending: dict[str, Staged] = {}  # in order of receipt
        for offer_json, staleness in self.ledger.rows(
            "SELECT offer, staleness FROM deltas WHERE outcome IS NULL ORDER BY seq"
        ):
            offer = Offer.model_validate_json(str(offer_json))
            self.pending[offer.delta] = Staged(offer, cast(int, staleness), now_s)
        self.last_merged: dict[str, str] = {
            str(replica): str(delta)
            for replica, delta, _ in self.ledger.rows(
                "SELECT replica, delta, MAX(decided) FROM deltas WHERE outcome = 'merged' "
                "GROUP BY replica"
            )
        }


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
