"""THE loop: lease, theta, H inner steps, delta, verdict, again; the same for one site or many.

Every rank runs it. Where a phase comes from and what becomes of it is the hand's business.
"""

from pww.replica.hand import Hand
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.trainer.api import Trainer


def run(hand: Hand, trainer: Trainer, report: Report, *, plan: PhasePlan) -> None:
    """Trains until every block is in or set aside.

    Raises:
        Stopped: a stop was agreed; the run can be resumed.
        TrainerError: phase after phase was rejected.
    """
    hand.resume(trainer)
    while lease := hand.acquire():
        theta = hand.base(lease, trainer)
        if theta is None:
            continue
        start, end = plan.progress(lease, theta, ahead=hand.num_windows)
        until = hand.until(lease)
        result = trainer.run(
            hand.windows(lease),
            progress=start,
            progress_end=end,
            on_step=report.steps(lease, theta, ahead=hand.num_windows),
            stop=until,
        )
        if not hand.is_over(lease, result, until):
            hand.hand_in(lease, result, trainer)
    hand.end(trainer)
