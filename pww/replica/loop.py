"""THE loop: lease, theta, H inner steps, delta, verdict, again; the same for one site or many.

Every rank runs it; `ranks.share` does the network part on rank 0 and tells the others. A delta that
a crash or a stop left without a verdict is delivered first: its id counts once, whatever arrived.
"""

import logging

from pww.clock import Clock
from pww.errors import PayloadError, Stopped, TrainerError
from pww.replica.outbox import Entry, Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.trainer.api import Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Exchange, Theta
from pww.wire import Lease, Verdict

log = logging.getLogger(__name__)
MAX_NOT_FINITE = 3
"""Phases that may go to nan, with none merged in between, before the replica gives up."""
MAX_REJECTED = 10
"""Deltas in a row that may be rejected for whatever reason before it does."""


def run(
    session: Session,
    exchange: Exchange,
    trainer: Trainer,
    outbox: Outbox,
    report: Report,
    *,
    plan: PhasePlan,
    ranks: Ranks,
    clock: Clock,
) -> None:
    """Trains until every block is in or set aside. Rank 0 alone uses `session` and `exchange`.

    Raises:
        Stopped: a stop was agreed; the run can be resumed.
        TrainerError: phase after phase was rejected.
    """
    streak = _Streak()
    dropped = outbox.rejoin(ranks.local(lambda: session.registered.last_merged))
    if dropped is not None:
        report.residual_lost(dropped, why="dropped")
    if outbox.last is not None:
        ranks.local(lambda: _measured(session, outbox, plan))
    if outbox.pending is not None:
        _deliver(session, exchange, outbox, report, outbox.pending, plan=plan, ranks=ranks)
    if outbox.last is not None and not outbox.last.offer.finite:
        trainer.reset_inner()  # the state that was saved beside it is not finite either
    while lease := ranks.share(lambda: session.acquire(plan.num_blocks)):
        theta = ranks.share(lambda: _pull(session, exchange, lease))
        if theta is None:
            continue
        trainer.load(theta.path)
        held_out = report.evaluate(theta, trainer)
        start, end = plan.progress(lease, theta)
        until = _Until(ranks, session, lease.id, clock=clock)
        result = trainer.run(
            plan.windows(lease),
            progress=start,
            progress_end=end,
            on_step=report.steps(lease, theta),
            stop=until,
        )
        if until.lost:
            log.warning("lease %d was lost: its phase is dropped", lease.id)
            ranks.local(lambda: session.settle(lease.id))
            continue
        if result.stopped:
            raise Stopped(f"stopped after {result.steps} steps of a phase, which is not delivered")
        entry = outbox.put(
            trainer, theta, result, lease,
            run=ranks.local(lambda: session.run), partial=plan.is_partial(lease),
            held_out=held_out,
        )  # fmt: skip
        verdict = _deliver(session, exchange, outbox, report, entry, plan=plan, ranks=ranks)
        if not entry.offer.finite:
            trainer.reset_inner()
        streak.count(entry, verdict)
    report.finish(ranks.share(lambda: exchange.pull(session.round)), trainer)
    if outbox.residual is not None:
        report.residual_lost(outbox.residual, why="end")


def _measured(session: Session, outbox: Outbox, plan: PhasePlan) -> None:
    """What the last phase took, in whatever process, sizes leases and their lives from now on."""
    assert outbox.last is not None
    told = outbox.last.offer.metrics
    session.measured(
        phase_s=told.phase_seconds,
        windows_per_s=told.tokens_per_s / (plan.space.window_tokens - 1),
    )


def _pull(session: Session, exchange: Exchange, lease: Lease) -> Theta | None:
    """The newest theta; None if the lease was lost while waiting for it."""
    theta = exchange.pull(session.round)
    if session.holds(lease.id):
        session.began()
        return theta
    log.warning("lease %d was lost before its phase began", lease.id)
    session.settle(lease.id)
    return None


GO, PAUSE, STOP, LOST = range(4)
"""What a rank says of the phase; the largest of all ranks holds."""
PAUSE_S = 1.0


class _Until:
    """Ends a phase before its last step: somebody asked to stop, or the lease was taken back.

    While the lease may have expired without our knowing, it holds the phase: another replica may be
    given its blocks by now.
    """

    def __init__(self, ranks: Ranks, session: Session, lease: int, *, clock: Clock) -> None:
        self._ranks, self._session, self._lease, self._clock = ranks, session, lease, clock
        self.lost = False

    def agreed(self) -> bool:
        """Collective: the same answer on every rank."""
        held = False
        while (agreed := self._ranks.most(self._mine())) == PAUSE:
            if not held and self._ranks.rank == 0:
                log.warning(
                    "lease %d may have expired, the central has not answered for so long: the "
                    "phase is held until it does", self._lease,
                )  # fmt: skip
            held = True
            self._clock.wait(self._ranks.asked, PAUSE_S)
        if held and agreed == GO and self._ranks.rank == 0:
            log.info("lease %d is still ours: the phase goes on", self._lease)
        self.lost = agreed == LOST
        return agreed >= STOP

    def _mine(self) -> int:
        mine = STOP if self._ranks.asked.is_set() else GO
        if self._ranks.rank == 0:
            match self._session.standing(self._lease):
                case "lost":
                    mine = LOST
                case "pause":
                    mine = max(mine, PAUSE)
        return mine


class _Streak:
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
                "lower optim.lr (or diloco.outer.lr, where the first steps after a merge go wrong)"
            )
        if self._rejected == MAX_REJECTED:
            raise TrainerError(
                f"{MAX_REJECTED} deltas in a row were rejected, the last one because "
                f"{verdict.reason}: give this replica phases that it can deliver in time "
                "(diloco.inner_steps), or a wider diloco.staleness_window at the central"
            )


def _deliver(
    session: Session,
    exchange: Exchange,
    outbox: Outbox,
    report: Report,
    entry: Entry,
    *,
    plan: PhasePlan,
    ranks: Ranks,
) -> Verdict:
    """Sends a durable delta until it has a verdict: merged and committed together, or neither."""
    offer = entry.offer

    def push() -> Verdict:
        named = offer.model_copy(update={"incarnation": session.incarnation})
        try:
            verdict = exchange.push(named, entry.payload)
        except PayloadError as why:
            raise PayloadError(
                f"the delta in {entry.folder} cannot be sent ({why}): remove that folder to go on "
                "from the phase before it"
            ) from why
        for leased in offer.spans:
            session.settle(leased.lease)
        _measured(session, outbox, plan)
        return verdict

    with report.exchanging(entry):
        verdict = ranks.share(push)
    outbox.settle(verdict)
    report.verdict(entry, verdict)
    return verdict
