"""THE loop: lease, theta, H inner steps, delta, verdict, again; the same for one site or many.

Every rank runs it; `ranks.share` does the network part on rank 0 and tells the others. A delta that
a crash or a stop left without a verdict is delivered first: its id counts once, whatever arrived.
"""

from pww.errors import Stopped, TrainerError
from pww.replica.outbox import Entry, Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.trainer.api import Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Exchange
from pww.wire import Verdict

MAX_NOT_FINITE = 3
"""Phases in a row that may go to nan before the replica gives up."""


def run(
    session: Session,
    exchange: Exchange,
    trainer: Trainer,
    outbox: Outbox,
    report: Report,
    *,
    plan: PhasePlan,
    ranks: Ranks,
) -> None:
    """Trains until every block is committed. `session` and `exchange` are used on rank 0 only.

    Raises:
        Stopped: a stop was agreed; the run can be resumed.
        TrainerError: phase after phase ended in nan.
    """
    failures = 0
    if outbox.pending is not None:
        _deliver(session, exchange, outbox, report, outbox.pending, ranks)
    while granted := ranks.share(lambda: session.acquire(plan.num_blocks)):
        theta = ranks.share(lambda: exchange.pull(session.round))
        trainer.load(theta.path)
        held_out = report.evaluate(theta, trainer)
        start, end = plan.progress(granted)
        result = trainer.run(
            plan.windows(granted.lease),
            progress=start,
            progress_end=end,
            on_step=report.steps(granted, theta),
            stop=ranks,
        )
        if result.stopped:
            raise Stopped(f"stopped after {result.steps} steps of a phase, which is not delivered")
        entry = outbox.put(
            trainer, theta, result, granted.lease,
            run=ranks.share(lambda: session.run), partial=plan.is_partial(granted.lease),
            held_out=held_out,
        )  # fmt: skip
        verdict = _deliver(session, exchange, outbox, report, entry, ranks)
        failures = 0 if verdict.outcome == "merged" or entry.offer.finite else failures + 1
        if not entry.offer.finite:
            trainer.reset_inner()
        if failures == MAX_NOT_FINITE:
            raise TrainerError(
                f"{failures} phases in a row ended in nan or inf: lower optim.lr (a smaller "
                "diloco.outer.lr helps where the first steps after a merge are the bad ones)"
            )
    report.finish(ranks.share(lambda: exchange.pull(session.round)), trainer)


def _deliver(
    session: Session,
    exchange: Exchange,
    outbox: Outbox,
    report: Report,
    entry: Entry,
    ranks: Ranks,
) -> Verdict:
    """Sends a durable delta until it has a verdict: merged and committed together, or neither."""
    offer = entry.offer

    def push() -> Verdict:
        named = offer.model_copy(update={"incarnation": session.incarnation})
        verdict = exchange.push(named, entry.payload)
        for leased in offer.spans:
            session.settle(leased.lease)
        session.measured(
            phase_s=offer.metrics.phase_seconds,
            windows_per_s=offer.tokens / max(offer.metrics.phase_seconds, 1e-9),
        )
        return verdict

    with report.exchanging(entry):
        verdict = ranks.share(push)
    outbox.settle(verdict)
    report.verdict(entry, verdict)
    return verdict
