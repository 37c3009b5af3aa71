"""A durable delta's way to its verdict: sent until there is one, noted, counted."""

from collections.abc import Callable

from pww.errors import PayloadError, TrainerError
from pww.replica.entry import Entry
from pww.replica.outbox import Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.trainer.ranks import Ranks, nothing
from pww.transport.exchange import Exchange
from pww.wire import Verdict

MAX_NOT_FINITE = 3
"""Phases that may go to nan, with none merged in between, before the replica gives up."""
MAX_REJECTED = 10
"""Deltas in a row that may be rejected for whatever reason before it does."""


class Delivery:
    """Hands in the deltas of one replica. Rank 0 alone uses `session` and `exchange`."""

    def __init__(
        self,
        session: Session,
        exchange: Exchange,
        outbox: Outbox,
        report: Report,
        *,
        plan: PhasePlan,
        ranks: Ranks,
    ) -> None:
        self._session, self._exchange, self._plan = session, exchange, plan
        self._outbox, self._report, self._ranks = outbox, report, ranks

    def deliver(self, entry: Entry, *, meanwhile: Callable[[], None] = nothing) -> Verdict:
        """Waits for the verdict: merged and committed together, or neither. Collective.

        `meanwhile` is called while it travels: see `Ranks.share`.
        """
        self._outbox.saved()
        with self._report.exchanging():
            verdict = self._ranks.share(lambda: self.push(entry), meanwhile=meanwhile)
        self.note(entry, verdict)
        return verdict

    def push(self, entry: Entry) -> Verdict:
        """The network's part of `deliver`; rank 0 only.

        Raises:
            PayloadError: the payload is damaged, or over the limit.
            Refused, Stopped: as `Exchange.push`.
        """
        offer = entry.offer.model_copy(update={"incarnation": self._session.incarnation})
        try:
            verdict = self._exchange.push(offer, entry.payload)
        except PayloadError as why:
            raise PayloadError(
                f"the delta in {entry.folder} cannot be sent ({why}): remove that folder to go on "
                "from the phase before it"
            ) from why
        for leased in offer.spans:
            self._session.settle(leased.lease)
        self.measured(entry)
        return verdict

    def note(self, entry: Entry, verdict: Verdict) -> None:
        """Makes the verdict durable and tells it. Collective."""
        self._outbox.settle(verdict)
        self._report.verdict(entry, verdict)

    def measured(self, entry: Entry) -> None:
        """What a phase took, in whatever process, sizes leases and their lives from now on."""
        told = entry.offer.metrics
        self._session.measured(
            phase_s=told.phase_seconds,
            windows_per_s=told.tokens_per_s / (self._plan.space.window_tokens - 1),
        )


class Streak:
    """Deltas that were rejected one after the other; a replica that only fails should say so."""

    def __init__(self) -> None:
        self._rejected = self._not_finite = 0

    def count(self, entry: Entry, verdict: Verdict) -> None:
        """Takes note of one verdict.

        Raises:
            TrainerError: too many in a row.
        """
        if verdict.outcome == "merged":
            self._rejected = self._not_finite = 0
            return
        self._rejected += 1
        self._not_finite += not entry.offer.finite
        if self._not_finite == MAX_NOT_FINITE:
            raise TrainerError(
                f"{MAX_NOT_FINITE} phases ended in nan or inf, and none was merged in between: "
                "go on with a lower optim.lr (resume=RUN optim.lr=…), or diloco.outer.lr where the "
                "first steps after a merge go wrong"
            )
        if self._rejected == MAX_REJECTED:
            raise TrainerError(
                f"{MAX_REJECTED} deltas in a row were rejected, the last one because "
                f"{verdict.reason}: give this replica phases that it can deliver in time "
                "(diloco.inner_steps), or a wider diloco.staleness_window at the central"
            )
