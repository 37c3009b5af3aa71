"""The exchange behind the training: a delta travels while the next phase runs (`diloco.overlap`).

    x_sent   the weights at the end of phase n, whose delta is on its way
    x_now    the weights at the end of phase n + 1, which went on from x_sent
    x      = theta_new + (x_now - x_sent)       once delta n has its verdict
    delta  = theta_new - x                      of phase n + 1, based on theta_new

So a delta holds the movement of its own phase and nothing else: what delta n moved is in theta_new
if it was merged and nowhere if it was rejected. One delta is on its way at most, hence deltas come
in order, residuals follow verdicts, and no delta is stale by the overlap itself. Phase n + 2 goes
on from x. fp32, one tensor at a time; x_sent lies on disk, so that no second model is in memory.
Nothing uses the exchange from the pull of theta_new until delta n + 1 is durable, so the file of
theta_new is there for as long as it is needed.

A crash or a stop loses the phase that runs, as without overlap: delta n is durable and is offered
again, and the next process starts from theta. No blend of theta_new and x is offered: a delta would
hold a share of what its replica moved before, which no audit of the ledger could tell.

Source: the overlap is that of arXiv 2501.18512 and 2502.12996; they blend, the shift is ours.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from pww.errors import CheckpointError, PayloadError, PwwError, Stopped
from pww.replica.delivery import Delivery, Streak
from pww.replica.entry import Entry
from pww.replica.outbox import Outbox
from pww.replica.plan import PhasePlan
from pww.replica.report import Report
from pww.replica.session import Session
from pww.trainer.api import EvalResult, Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Exchange, Theta
from pww.transport.fingerprint import Fingerprint
from pww.transport.tensorfile import TensorReader, TensorWriter
from pww.wire import Lease, Verdict

Tensors = Iterator[tuple[str, torch.Tensor]]
FILE = "sent.safetensors"
"""x_sent, in the run's folder; worth nothing to another process."""
WAIT_S = 10.0


class Flight:
    """One delta on its way: a thread of rank 0 sends it; the other ranks only know that it is."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._over = threading.Event()
        self._verdict: Verdict | None = None
        self._fault: BaseException | None = None

    def start(self, push: Callable[[Entry], Verdict]) -> None:
        """Begins to send."""

        def send() -> None:
            try:
                self._verdict = push(self.entry)
            except BaseException as fault:
                self._fault = fault
            finally:
                self._over.set()

        threading.Thread(target=send, daemon=True, name="push").start()

    @property
    def failed(self) -> bool:
        """Whether it will never have a verdict; who asked to stop is told so without this."""
        return self._over.is_set() and not isinstance(self._fault, Stopped | None)

    def verdict(self) -> Verdict:
        """Waits for it; raises what sending raised."""
        while not self._over.wait(WAIT_S):
            pass  # whoever sends ends: it watches the stop, and has deadlines of its own
        if self._fault is not None:
            raise self._fault
        assert self._verdict is not None
        return self._verdict


class Overlap:
    """What is on its way beside a phase; nothing ever is, unless somebody calls `send`.

    Every method is collective but `failed`.
    """

    def __init__(
        self,
        delivery: Delivery,
        session: Session,
        exchange: Exchange,
        outbox: Outbox,
        report: Report,
        *,
        streak: Streak,
        plan: PhasePlan,
        ranks: Ranks,
    ) -> None:
        self._delivery, self._session, self._exchange = delivery, session, exchange
        self._report, self._streak, self._plan, self._ranks = report, streak, plan, ranks
        self._outbox, self._sent = outbox, outbox.run / FILE
        self._known_by = ""  # the fingerprint of x_sent
        self._flight: Flight | None = None

    @property
    def busy(self) -> bool:
        """Whether a delta is on its way: then a phase goes on from the weights at hand."""
        return self._flight is not None

    @property
    def failed(self) -> bool:
        """Whether sending it failed; rank 0 knows, `land` raises why."""
        return self._flight is not None and self._flight.failed

    @property
    def num_windows(self) -> int:
        """Windows of the delta on its way, which are in no theta that we know."""
        if self._flight is None:
            return 0
        spans = (leased.span for leased in self._flight.entry.offer.spans)
        return sum(self._plan.space.num_span_windows(span) for span in spans)

    def acquire(self) -> Lease | None:
        """The next phase's lease, None at the end of the corpus.

        Where nothing can be leased at once there is no training to hide a wait behind, and what is
        on its way may be all that is missing: its verdict comes first.
        """
        blocks = self._plan.num_blocks
        if self.busy:
            lease = self._ranks.share(lambda: self._session.acquire(blocks, wait=False))
            if lease is not None:
                return lease
            self.land()
        return self._ranks.share(lambda: self._session.acquire(blocks))

    def send(self, entry: Entry, trainer: Trainer, *, shifted: bool) -> None:
        """Lets a delta go, taken from the trainer's weights; these were `shifted` or not.

        Raises:
            CheckpointError: the weights could not be kept.
        """
        flight = self._flight = Flight(entry)
        if self._ranks.rank == 0:
            self._delivery.measured(entry)
            flight.start(self._push)
        if not shifted:  # else `shift` has kept them
            self._keep(trainer, iter)

    def _push(self, entry: Entry) -> Verdict:
        """Sends the delta once it is durable; rank 0's thread."""
        self._outbox.wait()
        return self._delivery.push(entry)

    def land(self) -> None:
        """Waits for the verdict of the delta on its way, if there is one, and takes note of it.

        Raises:
            PwwError: sending it failed, or the verdict is one too many of its kind.
        """
        flight = self._flight
        if flight is None:
            return
        with self._report.exchanging():
            verdict = self._ranks.share(flight.verdict)
        self._delivery.note(flight.entry, verdict)
        self._flight = None
        self._streak.count(flight.entry, verdict)

    def shift(self, trainer: Trainer) -> tuple[Theta, EvalResult | None]:
        """After a phase: the verdict on the one before, the newest theta, the weights moved to it.

        The held-out loss is theta's, if it is due.

        Raises:
            CheckpointError: the weights could not be kept.
            PayloadError: theta on the disk is damaged, or not the trainer's.
            PwwError: as `land`, and as `Exchange.pull`.
        """
        self.land()
        theta = self._ranks.share(lambda: self._exchange.pull(self._session.round))
        shifted = partial(_shifted, theta=theta.path, sent=self._sent, known_by=self._known_by)
        self._keep(trainer, shifted)
        if self._report.is_due(theta):
            trainer.load(theta.path)
        held_out = self._report.evaluate(theta, trainer)
        trainer.load(self._sent)
        return theta, held_out

    def close(self) -> None:
        """Removes what was kept: all is delivered."""
        self._ranks.local(lambda: self._sent.unlink(missing_ok=True))

    def _keep(self, trainer: Trainer, change: Callable[[Tensors], Tensors]) -> None:
        """Writes the trainer's tensors, changed, to the file of what was sent."""
        gathered = trainer.tensors()
        fault: PwwError | None = None
        if self._ranks.rank == 0:
            layout = {n: (torch.float32, tuple(shape)) for n, shape in trainer.shapes().items()}
            try:
                seen = Fingerprint()
                # Of no worth to another process: no disk has to be waited for
                with TensorWriter(self._sent, layout, {}, hashed=False, synced=False) as writer:
                    for name, tensor in change((n, t.cpu()) for n, t in gathered):
                        writer.add(name, tensor)
                        seen.add_all(tensor)
                self._known_by = seen.hexdigest()
            except PayloadError as why:
                fault = why
            except OSError as why:
                fault = CheckpointError(
                    f"cannot write {self._sent}: {why}. What was sent is safe: make room, then go "
                    f"on with resume={self._sent.parent}"
                )
        for _ in gathered:
            pass  # all ranks gather every tensor, whatever happened on rank 0
        self._ranks.agree_on_fault(fault)


def _shifted(inner: Tensors, *, theta: Path, sent: Path, known_by: str) -> Tensors:
    """theta + (x_now - x_sent).

    Raises:
        PayloadError: x_sent is not, to the bit, what was kept.
    """
    seen = Fingerprint()
    with TensorReader(theta) as outer, TensorReader(sent) as before:
        for name, now in inner:
            kept = before.get(name)
            seen.add_all(kept)
            yield name, outer.get(name) + (now - kept)
    if seen.hexdigest() != known_by:
        raise PayloadError(
            f"{sent} was changed on the disk while a phase ran: the movement of that phase is "
            "lost; resume the run, and look for a failing disk"
        )
