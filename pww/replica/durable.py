"""One replica's phases: each delta is a file that is durable before it is sent, until its verdict.

`ranks.share` does the network part on rank 0 and tells the others.
"""

import logging
from collections.abc import Sequence
from functools import partial

from pww.clock import Clock
from pww.errors import Stopped
from pww.replica.ahead import Ahead
from pww.replica.delivery import Delivery, Streak
from pww.replica.outbox import Outbox
from pww.replica.overlap import Overlap
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.replica.until import Until
from pww.trainer.api import EvalResult, PhaseResult, Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Exchange, Theta
from pww.wire import Lease

log = logging.getLogger(__name__)


class Durable:
    """`hand.Hand` over a session and an exchange, which rank 0 alone uses.

    With `overlap` a delta travels while the next phase goes on from the weights at hand.
    """

    def __init__(
        self,
        session: Session,
        exchange: Exchange,
        outbox: Outbox,
        report: Report,
        *,
        plan: PhasePlan,
        ranks: Ranks,
        clock: Clock,
        overlap: bool = False,
    ) -> None:
        self._session, self._exchange, self._outbox, self._report = (
            session, exchange, outbox, report,
        )  # fmt: skip
        self._plan, self._ranks, self._clock, self._overlap = plan, ranks, clock, overlap
        self._delivery = Delivery(session, exchange, outbox, report, plan=plan, ranks=ranks)
        self._ahead = Ahead(session, plan=plan, ranks=ranks)
        self._streak = Streak()
        self._beside = Overlap(
            self._delivery, session, exchange, outbox, report, streak=self._streak, plan=plan,
            ranks=ranks,
        )  # fmt: skip
        self._theta: Theta | None = None
        self._held_out: EvalResult | None = None

    @property
    def num_windows(self) -> int:
        """See `Hand`: those of the delta that travels."""
        return self._beside.num_windows

    def resume(self, trainer: Trainer) -> None:
        """See `Hand`."""
        outbox, ranks = self._outbox, self._ranks
        dropped = outbox.rejoin(ranks.local(lambda: self._session.registered.last_merged))
        if dropped is not None:
            self._report.residual_lost(dropped, why="dropped")
        last = outbox.last
        if last is not None:
            ranks.local(lambda: self._delivery.measured(last))
        if outbox.pending is not None:
            self._delivery.deliver(outbox.pending)
        if outbox.last is not None and not outbox.last.offer.finite:
            trainer.reset_inner()  # the state that was saved beside it is not finite either

    def acquire(self) -> Lease | None:
        """See `Hand`."""
        return self._beside.acquire()

    def base(self, lease: Lease, trainer: Trainer) -> Theta | None:
        """See `Hand`; while a delta travels, the phase goes on from the weights at hand."""
        if not self._beside.busy:
            pulled = self._ranks.share(lambda: self._pull(lease))
            if pulled is None:
                return None
            self._theta = pulled
            trainer.load(pulled.path)
            self._held_out = self._report.evaluate(pulled, trainer)
        return self._theta

    def windows(self, lease: Lease) -> Sequence[int]:
        """See `Hand`: the whole lease."""
        return self._plan.windows(lease)

    def until(self, lease: Lease) -> Until:
        """See `Hand`."""
        return Until(
            self._ranks, lease.id, clock=self._clock,
            standing=lambda: self._session.standing(lease.id),
            failing=lambda: self._beside.failed,
        )  # fmt: skip

    def is_over(self, lease: Lease, result: PhaseResult, until: Until) -> bool:
        """See `Hand`."""
        if until.lost:
            log.warning("lease %d was lost: its phase is dropped", lease.id)
            self._ranks.local(lambda: self._session.settle(lease.id))
        if until.lost or until.failed:
            self._beside.land()
            return True
        if result.stopped:
            raise Stopped(f"stopped after {result.steps} steps of a phase, which is not delivered")
        return False

    def hand_in(self, lease: Lease, result: PhaseResult, trainer: Trainer) -> None:
        """See `Hand`; with overlap the delta is only on its way after it."""
        if shifted := self._beside.busy:
            self._theta, self._held_out = self._beside.shift(trainer)
        assert self._theta is not None, "a phase has a base"
        with self._report.saving():
            entry = self._outbox.put(
                trainer, self._theta, result, lease,
                run=self._ranks.local(lambda: self._session.run),
                partial=self._plan.is_partial(lease), held_out=self._held_out,
                gauges=self._report.meters.read(result), beside=self._overlap,
            )  # fmt: skip
        if self._overlap and entry.offer.finite:
            self._beside.send(entry, trainer, shifted=shifted)
            return
        verdict = self._delivery.deliver(entry, meanwhile=partial(self._ahead.look, trainer))
        if not entry.offer.finite:
            trainer.reset_inner()
        self._streak.count(entry, verdict)

    def end(self, trainer: Trainer) -> None:
        """See `Hand`."""
        if self._overlap:
            self._beside.close()
        theta = self._ranks.share(lambda: self._exchange.pull(self._session.round))
        self._report.finish(theta, trainer)
        if self._outbox.residual is not None:
            self._report.residual_lost(self._outbox.residual, why="end")

    def _pull(self, lease: Lease) -> Theta | None:
        """The newest theta; None if the lease was lost while waiting for it."""
        theta = self._exchange.pull(self._session.round)
        if self._session.holds(lease.id):
            self._session.began()
            return theta
        log.warning("lease %d was lost before its phase began", lease.id)
        self._session.settle(lease.id)
        return None
