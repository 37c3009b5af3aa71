"""What becomes of deltas: received, merged or rejected; each step is one transaction.

Receipt pins the spans and fixes the staleness. A replica's undecided deltas form a chain in order
of receipt, each encoded on the one before (`Offer.prev`): a merge takes the chain from its start,
and when one is rejected the ones after it are too. An empty `prev` says "encoded without a
residual", which only the first delta of an incarnation may say; so a site that lost its disk can
go on under its old name.
"""

from collections.abc import Collection, Sequence

from pww.central import admission, sizing
from pww.central.ledger import Value
from pww.central.state import Change, Staged, State, as_text
from pww.errors import LeaseError, Refused
from pww.lease.events import Event
from pww.wire import Offer, RoundReport, Verdict

NUM_VERDICTS = 8
"""How many of its last verdicts a replica is told."""


class Deltas:
    """The deltas of a run."""

    def __init__(self, state: State, *, staleness_window: int, ttl_s: float) -> None:
        self._state = state
        self._window = staleness_window
        self._ttl_s = ttl_s  # of a lease that had expired when its delta came

    def receive(self, offer: Offer) -> Verdict | None:
        """Makes a delta durable and pins its spans, or answers at once; the same id counts once.

        Raises:
            Refused: the id was used for another delta.
        """
        state = self._state
        with state.lock:
            rows = state.ledger.rows(
                "SELECT offer, delta, outcome, round, reason FROM deltas WHERE delta = ?",
                offer.delta,
            )
            if rows:
                before = Offer.model_validate_json(str(rows[0][0]))
                if not _same(before, offer):
                    raise Refused(
                        f"delta {offer.delta} was received before with other content: an id names "
                        "one delta; send what the outbox holds",
                        code="bad_request",
                    )
                return None if rows[0][2] is None else _verdict(rows[0][1:])
            stranger = admission.stranger(state, offer)
            if stranger:  # not noted: its replica's living incarnation may still present it
                return self._rejected(offer.delta, stranger)
            staleness = max(0, state.round - offer.base_round)
            reason = admission.fault(state, offer, staleness=staleness, window=self._window)
            if not reason:
                try:
                    events = state.table.decide_pin(
                        offer.delta, replica=offer.replica, spans=offer.spans, ttl_s=self._ttl_s
                    )
                except LeaseError as why:
                    reason = str(why)
            if reason:
                return self._turn_away(offer, staleness, reason)
            self._note(offer, staleness, events)
            return None

    def _note(self, offer: Offer, staleness: int, events: Sequence[Event]) -> None:
        state = self._state
        with state.change() as change:
            self._insert(change, offer, staleness)
            change.lease(events)
            staged = Staged(offer, staleness, state.clock.monotonic())
            change.then(lambda: state.pending.update({offer.delta: staged}))
            self._judge_size(change, offer, staleness)

    def _turn_away(self, offer: Offer, staleness: int, reason: str) -> Verdict:
        """Notes an inadmissible delta with its verdict; what of its spans is still his returns."""
        state = self._state
        leases = [leased.lease for leased in offer.spans]
        with state.change() as change:
            self._insert(change, offer, staleness)
            self._decide(change, offer.delta, "rejected", state.round, reason)
            change.lease(
                state.table.decide_return(leases, replica=offer.replica, reason="rejected")
            )
            self._judge_size(change, offer, staleness)
        return self._rejected(offer.delta, reason)

    def _judge_size(self, change: Change, offer: Offer, staleness: int) -> None:
        """What the delta tells of its replica: its last phase, and whether phases like it fit."""
        seat = self._state.seats[offer.replica]
        fit = sizing.fit_after(seat.fit, staleness=staleness, window=self._window)
        if fit != seat.fit:
            change.tx.execute(
                "UPDATE members SET fit = ? WHERE incarnation = ?", fit, seat.member.incarnation
            )

        def known() -> None:
            seat.last, seat.staleness, seat.fit = offer, staleness, fit

        change.then(known)

    # ------------------------------------------------------------------------------------ verdicts

    def reject(self, delta: str, reason: str) -> Verdict:
        """Rejects an undecided delta, and those encoded on it; their spans return to the pool.

        Raises:
            LeaseError: it was never received, or is merged.
        """
        state = self._state
        with state.lock:
            if delta in state.pending:
                with state.change() as change:
                    self._reject_chain(change, delta, reason)
            rows = state.ledger.rows(
                "SELECT delta, outcome, round, reason FROM deltas WHERE delta = ?", delta
            )
            if not rows or rows[0][1] != "rejected":
                fate = "merged" if rows else "unknown"
                raise LeaseError(f"delta {delta} is {fate}; only a pending one can be rejected")
            return _verdict(rows[0])

    def void(
        self, change: Change, replica: str, *, presented: Collection[str], claimed: Collection[int]
    ) -> None:
        """On a takeover: what is not presented is rejected, claimed leases stay leased."""
        for delta in admission.chain(self._state, replica):
            if delta not in presented:
                reason = "replaced by a new incarnation, which does not present it"
                self._reject_chain(change, delta, reason, keep=claimed)
                return

    def _reject_chain(
        self, change: Change, delta: str, reason: str, *, keep: Collection[int] = ()
    ) -> None:
        state = self._state
        chain = admission.chain(state, state.pending[delta].offer.replica)
        for each in chain[chain.index(delta) :]:
            why = reason if each == delta else f"it was encoded on {delta}, which was rejected"
            self._decide(change, each, "rejected", state.round, why)
            change.lease(state.table.decide_reject(each, keep=keep))

    def close_round(
        self, *, merged: Sequence[str], generation: str, state_hash: str, report: RoundReport
    ) -> None:
        """Round + 1: generation pointer, verdicts and committed spans in one transaction.

        Raises:
            LeaseError: the merge does not follow from what is pending; nothing changed.
        """
        state = self._state
        with state.lock:
            number = state.round + 1
            self._check_mergeable(merged, report, number)
            # a chain is merged in order, so that the last one is the replica's last merged delta
            ordered = [delta for delta in state.pending if delta in set(merged)]
            with state.change() as change:
                self._publish(
                    change, number, generation, state_hash, as_text(report), tokens=report.tokens
                )
                for delta in ordered:
                    self._decide(change, delta, "merged", number, "")
                    change.lease(state.table.decide_commit(delta))
                last = {state.pending[delta].offer.replica: delta for delta in ordered}
                change.then(lambda: state.last_merged.update(last))
                change.then(lambda: state.merged(report))

    def _check_mergeable(self, merged: Sequence[str], report: RoundReport, number: int) -> None:
        state = self._state
        if not merged:
            raise LeaseError(f"round {number} merges nothing: a round without a delta is void")
        if report.round != number:
            raise LeaseError(f"the report is of round {report.round}, the next round is {number}")
        if state.generation == "":
            raise LeaseError("there is no theta(0) to merge into: publish a seed first")
        for delta in merged:
            if delta not in state.pending:
                raise LeaseError(f"delta {delta} has no verdict pending; merge what is staged")
            chain = admission.chain(state, state.pending[delta].offer.replica)
            before = chain[: chain.index(delta)]
            missing = [each for each in before if each not in merged]
            if missing:
                raise LeaseError(
                    f"delta {delta} was encoded on {missing[0]}, which this merge leaves out; "
                    "merge or reject that one first"
                )

    def seed(self, *, generation: str, state_hash: str) -> None:
        """theta(0) is published as round 0; the first one wins.

        Raises:
            LeaseError: another theta(0) was published before.
        """
        state = self._state
        with state.lock:
            rows = state.ledger.rows("SELECT state_hash FROM rounds WHERE round = 0")
            if rows and rows[0][0] != state_hash:
                raise LeaseError(
                    f"theta(0) is {rows[0][0]} already, not {state_hash}; train from the published"
                )
            if not rows:
                with state.change() as change:
                    self._publish(change, 0, generation, state_hash, None, tokens=0)

    def verdicts(self, replica: str) -> tuple[Verdict, ...]:
        """The replica's last verdicts, oldest first."""
        with self._state.lock:
            rows = self._state.ledger.rows(
                "SELECT delta, outcome, round, reason FROM deltas "
                "WHERE replica = ? AND decided > 0 ORDER BY decided DESC LIMIT ?",
                replica,
                NUM_VERDICTS,
            )
        return tuple(_verdict(row) for row in reversed(rows))

    # ------------------------------------------------------------------------------------- writing

    def _insert(self, change: Change, offer: Offer, staleness: int) -> None:
        change.tx.execute(
            "INSERT INTO deltas (delta, replica, incarnation, staleness, offer, received_wall) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            offer.delta,
            offer.replica,
            offer.incarnation,
            staleness,
            as_text(offer),
            self._state.clock.wall(),
        )

    def _decide(self, change: Change, delta: str, outcome: str, number: int, reason: str) -> None:
        change.tx.execute(
            "UPDATE deltas SET outcome = ?, round = ?, reason = ?, "
            "decided = (SELECT COALESCE(MAX(decided), 0) + 1 FROM deltas) WHERE delta = ?",
            outcome,
            number,
            reason,
            delta,
        )
        change.then(lambda: self._state.pending.pop(delta, None))

    def _publish(
        self,
        change: Change,
        number: int,
        generation: str,
        state_hash: str,
        report: str | None,
        *,
        tokens: int,
    ) -> None:
        state = self._state
        change.tx.execute(
            "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ? + COALESCE("
            "(SELECT tokens_total FROM rounds WHERE round = ?), 0))",
            number,
            generation,
            state_hash,
            report,
            state.clock.wall(),
            tokens,
            number - 1,
        )
        change.tx.execute(
            "UPDATE run SET round = ?, generation = ?, state_hash = ?",
            number,
            generation,
            state_hash,
        )

        def visible() -> None:
            state.round, state.generation, state.state_hash = number, generation, state_hash

        change.then(visible)

    def _rejected(self, delta: str, reason: str) -> Verdict:
        return Verdict(delta=delta, outcome="rejected", round=self._state.round, reason=reason)


def _same(a: Offer, b: Offer) -> bool:
    """Equal but for the incarnation and the way it came: a requeued process presents its
    predecessor's outbox.
    """
    return a.model_copy(update={"incarnation": b.incarnation, "carried": b.carried}) == b


def _verdict(row: Sequence[Value]) -> Verdict:
    delta, outcome, number, reason = row
    return Verdict.model_validate(
        {"delta": delta, "outcome": outcome, "round": number, "reason": reason}
    )
