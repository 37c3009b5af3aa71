"""The replicas of one allocation take the outer step together; their deltas never leave the ranks.

They share one lease, a part each, and meet at the end of every phase. Rank 0 of all has the books:

    received   the ledger pins the phase's tokens
    stepped    every rank moves its shard of theta_outer (`replica.collective`)
    durable    theta and momentum as a generation, each replica's inner state as a checkpoint
    closed     round, verdict and tokens in one transaction of the ledger

A crash before `durable` voids the phase: its tokens are leased again. After it the round is closed
by whoever resumes. A phase in which one replica went to nan is rejected whole, so that no token is
in theta without its replica's others.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import torch

from pww.clock import Clock
from pww.errors import CheckpointError, PwwError, Stopped
from pww.replica.collective import Collective
from pww.replica.delivery import Streak
from pww.replica.entry import Entry
from pww.replica.groups import Allocation
from pww.replica.holdings import Standing
from pww.replica.plan import PhasePlan
from pww.replica.pooled import Pooled, offer_of, report_of
from pww.replica.report import Report
from pww.replica.session import Session
from pww.replica.tally import OuterReport
from pww.replica.together_disk import Checkpoints, inner_of, residual_of
from pww.replica.until import Until
from pww.trainer.api import EvalResult, PhaseResult, Trainer
from pww.transport.exchange import Theta
from pww.transport.payload import write_theta
from pww.wire import Lease, Offer, RoundReport, Verdict

log = logging.getLogger(__name__)
LOOK_S = 1.0
"""How often a replica looks whether another one was asked to stop."""
WHOLE, LOST, STOPPED = range(3)


class Draft(Protocol):
    """A generation being written."""

    def add(self, name: str, *, theta: torch.Tensor, momentum: torch.Tensor) -> None:
        """Appends one whole tensor and its momentum."""


class Books(Protocol):
    """Leases, rounds and generations; rank 0 of all."""

    def theta(self) -> Theta:
        """Of the current round."""

    def momentum(self) -> Path:
        """Of the current round."""

    def receive(self, offer: Offer) -> Verdict | None:
        """Pins a phase's tokens; a verdict if it is decided already."""

    def draft(self, shapes: Mapping[str, tuple[int, ...]]) -> AbstractContextManager[Draft]:
        """The next round's theta and momentum, durable after the block."""

    def close(self, offer: Offer, report: RoundReport) -> Verdict:
        """The received phase is the next round."""


class Together:
    """`hand.Hand` for k replicas. Rank 0 of all alone uses `session` and `books`."""

    def __init__(
        self,
        place: Allocation,
        collective: Collective,
        session: Session,
        books: Books,
        disk: Checkpoints,
        report: Report,
        *,
        plan: PhasePlan,
        clock: Clock,
    ) -> None:
        self._place, self._collective, self._session, self._books = (
            place, collective, session, books,
        )  # fmt: skip
        self._disk, self._report, self._plan, self._clock = disk, report, plan, clock
        self._streak = Streak()
        self._all, self._ranks = place.everyone, place.ranks
        self._theta: Theta | None = None
        self._held_out: EvalResult | None = None
        self._prev = ""
        self._looked_s = clock.monotonic()

    @property
    def num_windows(self) -> int:
        """See `Hand`: nothing travels beside a phase."""
        return 0

    def resume(self, trainer: Trainer) -> None:
        """See `Hand`; theta, momentum and residuals are then where the last round left them."""
        last = self._disk.last
        if last is not None:
            self._all.local(lambda: self._measured(last.offer))
        self._prev = self._all.local(lambda: self._session.registered.last_merged)
        if self._disk.pending is not None:
            self._close(self._disk.pending)
        self._collective.round = self._pull().round
        momentum = Path(self._all.local(lambda: str(self._books.momentum())))
        trainer.load(momentum)
        self._collective.take("momentum")
        if last is not None and self._collective.feedback:
            kept = residual_of(last.folder, self._place.replica)
            if self._ranks.local(kept.exists):
                trainer.load(kept)
                self._collective.take("residual")
        trainer.load(self._known.path)
        self._collective.take("theta")
        if last is not None and not last.offer.finite:
            trainer.reset_inner()

    def acquire(self) -> Lease | None:
        """See `Hand`: one lease for all replicas."""
        blocks = self._plan.num_blocks

        def ask() -> str:
            lease = self._session.acquire(blocks)
            return "" if lease is None else lease.model_dump_json()

        told = self._all.share(ask)
        return Lease.model_validate_json(told) if told else None

    def base(self, lease: Lease, trainer: Trainer) -> Theta | None:
        """See `Hand`: the trainer holds it since the last step."""
        self._held_out = self._report.evaluate(self._known, trainer)
        if self._place.is_first:
            self._session.began()
        return self._known

    def windows(self, lease: Lease) -> Sequence[int]:
        """See `Hand`: this replica's part of the lease."""
        return self._plan.windows(lease, replica=self._place.replica)

    def until(self, lease: Lease) -> Until:
        """See `Hand`; one replica's wish to stop reaches the others within about a second."""

        def standing() -> Standing:
            now_s = self._clock.monotonic()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s = now_s
                self._place.look()
            return self._session.standing(lease.id) if self._place.is_first else "draw"

        return Until(self._ranks, lease.id, clock=self._clock, standing=standing)

    def is_over(self, lease: Lease, result: PhaseResult, until: Until) -> bool:
        """See `Hand`; all replicas meet here, however their phases ended."""
        if result.stopped and not until.lost:
            self._place.stop_all()
        mine = LOST if until.lost else STOPPED if result.stopped else WHOLE
        ended = self._all.most(mine)
        if ended == STOPPED:
            raise Stopped(f"stopped after {result.steps} steps of a phase, which is not delivered")
        if ended == LOST:
            if self._place.is_first:
                log.warning("lease %d was lost: its phase is dropped", lease.id)
                self._session.settle(lease.id)
            self._collective.go_back()
        return ended == LOST

    def hand_in(self, lease: Lease, result: PhaseResult, trainer: Trainer) -> None:
        """See `Hand`: received, stepped, durable, closed."""
        partial = self._plan.is_partial(lease)
        with self._report.exchanging():
            tally = self._collective.look(result.tokens, partial=partial)
            pooled = Pooled.of(result, self._place.outer)
            finite = pooled.finite and len(tally.merged) == pooled.num_trained
            offer = offer_of(
                lease, pooled, tally, run=self._run(), base=self._known,
                delta=self._all.local(lambda: uuid4().hex), prev=self._prev, partial=partial,
                finite=finite, held_out=self._held_out, gauges=self._report.meters.read,
            )  # fmt: skip
            verdict = self._receive(offer)
            step = None
            if verdict is None:
                step = self._collective.apply(tally)
            else:
                self._collective.go_back()
        report = None if step is None else report_of(step, pooled, replica=lease.replica)
        with self._report.saving():
            entry = self._save(offer, report, trainer, pooled)
        if verdict is None:
            self._close(entry, received=step)
        else:
            self._note(entry, verdict)
            self._streak.count(entry, verdict)
            if not finite:
                trainer.reset_inner()

    def end(self, trainer: Trainer) -> None:
        """See `Hand`."""
        self._report.finish(self._known, trainer)

    # ------------------------------------------------------------------------------ the books

    @property
    def _known(self) -> Theta:
        assert self._theta is not None, "resume first"
        return self._theta

    def _run(self) -> str:
        return self._all.local(lambda: self._session.run)

    def _receive(self, offer: Offer) -> Verdict | None:
        def receive() -> str:
            one = offer.model_copy(update={"incarnation": self._session.incarnation})
            verdict = self._books.receive(one)
            return "" if verdict is None else verdict.model_dump_json()

        told = self._all.local(receive)
        return Verdict.model_validate_json(told) if told else None

    def _close(self, entry: Entry, *, received: OuterReport | None = None) -> None:
        """The round of a durable phase, which may be closed already."""

        def close() -> str:
            one = entry.offer.model_copy(update={"incarnation": self._session.incarnation})
            verdict = self._books.receive(one) or self._books.close(one, self._disk.report(entry))
            for leased in one.spans:
                self._session.settle(leased.lease)
            self._measured(one)
            return verdict.model_dump_json()

        verdict = Verdict.model_validate_json(self._all.local(close))
        self._note(entry, verdict, sent_bytes=0 if received is None else received.bytes_sent)
        if verdict.outcome == "merged":
            self._prev = entry.offer.delta
        self._streak.count(entry, verdict)
        self._pull(received_bytes=0 if received is None else received.bytes_received)

    def _note(self, entry: Entry, verdict: Verdict, *, sent_bytes: int = 0) -> None:
        self._all.local(lambda: self._disk.settle(entry, verdict))
        self._disk.last = replace(entry, verdict=verdict)
        self._report.verdict(entry, verdict, sent_bytes=sent_bytes)

    def _measured(self, offer: Offer) -> None:
        told = offer.metrics
        self._session.measured(
            phase_s=told.phase_seconds,
            windows_per_s=told.tokens_per_s / (self._plan.space.window_tokens - 1),
        )

    def _pull(self, *, received_bytes: int = 0) -> Theta:
        """Which theta it is now, on every rank; the trainer holds it already, or will."""

        def tell() -> list[object]:
            theta = self._books.theta()
            report = None if theta.report is None else theta.report.model_dump_json()
            return [
                theta.round, str(theta.path), theta.state_hash, report, theta.committed_windows,
            ]  # fmt: skip

        number, path, state_hash, told, committed = self._all.local(tell)
        report = None if told is None else RoundReport.model_validate_json(str(told))
        self._theta = Theta(
            int(str(number)), Path(str(path)), str(state_hash), report, int(str(committed)),
            received_bytes,
        )  # fmt: skip
        return self._theta

    # ------------------------------------------------------------------------------- the disk

    def _save(
        self, offer: Offer, report: RoundReport | None, trainer: Trainer, pooled: Pooled
    ) -> Entry:
        """Makes the phase durable: theta and momentum first, then what stands beside them."""
        disk, replica = self._disk, self._place.replica
        part, final = disk.part, disk.part.with_suffix("")
        total = offer.tokens + (0 if disk.last is None else disk.last.tokens_total)
        entry = Entry(final, offer, self._all.local(lambda: trainer.step), total, None)
        self._all.local(disk.begin)
        if report is not None:
            self._write_theta(trainer)
        fault: PwwError | None = None
        try:
            trainer.save_inner(inner_of(part, replica))
            if self._collective.feedback:
                self._write_residual(trainer, residual_of(part, replica), final)
        except CheckpointError as why:
            fault = why
        try:
            self._all.agree_on_fault(fault)
        except PwwError:
            self._all.local(disk.discard)
            raise
        self._all.local(lambda: disk.complete(entry, report, pooled.drawn))
        disk.last = entry
        return entry

    def _write_theta(self, trainer: Trainer) -> None:
        """The generation of the next round, by replica 0; the others hold the same."""
        fault: PwwError | None = None
        if self._place.replica == 0:
            rows = self._collective.whole("momentum", keep=self._place.is_first)
            if self._place.is_first:
                shapes = {name: tuple(shape) for name, shape in trainer.shapes().items()}
                try:
                    with self._books.draft(shapes) as draft:
                        for name, theta, momentum in rows:
                            draft.add(name, theta=theta, momentum=momentum)
                except PwwError as why:
                    fault = why
            for _ in rows:
                pass  # all its ranks gather every tensor, whatever happened on rank 0
        self._all.agree_on_fault(fault)

    def _write_residual(self, trainer: Trainer, path: Path, final: Path) -> None:
        rows = self._collective.whole("residual", keep=self._ranks.rank == 0)
        fault: PwwError | None = None
        if self._ranks.rank == 0:
            try:
                write_theta(path, ((name, part) for name, _, part in rows), trainer.shapes())
            except OSError as why:
                fault = CheckpointError(f"cannot write {final}: {why}")
        for _ in rows:
            pass
        self._ranks.agree_on_fault(fault)
