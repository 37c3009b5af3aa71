"""THE loop: lease, theta, H inner steps, delta, verdict, again; the same for one site or many.

Every rank runs it; `ranks.share` does the network part on rank 0 and tells the others. A delta that
a crash or a stop left without a verdict is delivered first: its id counts once, whatever arrived.
"""

import logging

from pww.clock import Clock
from pww.errors import Stopped
from pww.replica.delivery import Delivery, Streak
from pww.replica.outbox import Outbox
from pww.replica.overlap import Overlap
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.trainer.api import Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Exchange, Theta
from pww.wire import Lease

log = logging.getLogger(__name__)


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
    overlap: bool = False,
) -> None:
    """Trains until every block is in or set aside. Rank 0 alone uses `session` and `exchange`.

    With `overlap` a delta travels while the next phase goes on from the weights at hand.

    Raises:
        Stopped: a stop was agreed; the run can be resumed.
        TrainerError: phase after phase was rejected.
    """
    delivery = Delivery(session, exchange, outbox, report, plan=plan, ranks=ranks)
    streak = Streak()
    beside = Overlap(
        delivery, session, exchange, outbox, report, streak=streak, plan=plan, ranks=ranks
    )
    dropped = outbox.rejoin(ranks.local(lambda: session.registered.last_merged))
    if dropped is not None:
        report.residual_lost(dropped, why="dropped")
    last = outbox.last
    if last is not None:
        ranks.local(lambda: delivery.measured(last))
    if outbox.pending is not None:
        delivery.deliver(outbox.pending)
    if outbox.last is not None and not outbox.last.offer.finite:
        trainer.reset_inner()  # the state that was saved beside it is not finite either
    while lease := beside.acquire():
        if not beside.busy:
            pulled = ranks.share(lambda: _pull(session, exchange, lease))
            if pulled is None:
                continue
            theta = pulled
            trainer.load(theta.path)
            held_out = report.evaluate(theta, trainer)
        start, end = plan.progress(lease, theta, ahead=beside.num_windows)
        until = _Until(ranks, session, lease.id, clock=clock, beside=beside)
        result = trainer.run(
            plan.windows(lease),
            progress=start,
            progress_end=end,
            on_step=report.steps(lease, theta, ahead=beside.num_windows),
            stop=until,
        )
        if until.lost:
            log.warning("lease %d was lost: its phase is dropped", lease.id)
            ranks.local(lambda: session.settle(lease.id))
        if until.lost or until.failed:
            beside.land()
            continue
        if result.stopped:
            raise Stopped(f"stopped after {result.steps} steps of a phase, which is not delivered")
        if shifted := beside.busy:
            theta, held_out = beside.shift(trainer)
        with report.saving():
            entry = outbox.put(
                trainer, theta, result, lease,
                run=ranks.local(lambda: session.run), partial=plan.is_partial(lease),
                held_out=held_out, gauges=report.meters.read(result), beside=overlap,
            )  # fmt: skip
        if overlap and entry.offer.finite:
            beside.send(entry, trainer, shifted=shifted)
            continue
        verdict = delivery.deliver(entry)
        if not entry.offer.finite:
            trainer.reset_inner()
        streak.count(entry, verdict)
    if overlap:
        beside.close()
    report.finish(ranks.share(lambda: exchange.pull(session.round)), trainer)
    if outbox.residual is not None:
        report.residual_lost(outbox.residual, why="end")


def _pull(session: Session, exchange: Exchange, lease: Lease) -> Theta | None:
    """The newest theta; None if the lease was lost while waiting for it."""
    theta = exchange.pull(session.round)
    if session.holds(lease.id):
        session.began()
        return theta
    log.warning("lease %d was lost before its phase began", lease.id)
    session.settle(lease.id)
    return None


GO, PAUSE, STOP, LOST, FAILED = range(5)
"""What a rank says of the phase; the largest of all ranks holds."""
PAUSE_S = 1.0


class _Until:
    """Ends a phase before its last step: somebody asked to stop, the lease was taken back, or the
    delta that travels beside it cannot be delivered.

    While the lease may have expired without our knowing, it holds the phase: another replica may be
    given its blocks by now.
    """

    def __init__(
        self, ranks: Ranks, session: Session, lease: int, *, clock: Clock, beside: Overlap
    ) -> None:
        self._ranks, self._session, self._lease, self._clock = ranks, session, lease, clock
        self._beside = beside
        self.lost = self.failed = False

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
        self.lost, self.failed = agreed == LOST, agreed == FAILED
        return agreed >= STOP

    def _mine(self) -> int:
        mine = STOP if self._ranks.asked.is_set() else GO
        if self._ranks.rank == 0:
            match self._session.standing(self._lease):
                case "lost":
                    mine = LOST
                case "pause":
                    mine = max(mine, PAUSE)
            if self._beside.failed:
                mine = FAILED
        return mine
