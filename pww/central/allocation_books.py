"""The books of an allocation whose replicas take the outer step themselves: leases, rounds, theta.

The same coordinator, ledger and generations as at a central, in this process; what is missing is
the merge. A round is: received (which pins the tokens), stepped by the ranks, written as a
generation, closed in the ledger's one transaction. What survives a crash is the last closed round;
a delta that was received and whose checkpoint is not there is void when its replica registers
again.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pww.central.coordinator import Coordinator
from pww.central.disk_refused import disk_refused
from pww.central.draft import Draft
from pww.central.generations import name_of
from pww.central.published import Published
from pww.central.theta0 import write_theta0
from pww.errors import StateError
from pww.transport.exchange import Theta
from pww.transport.payload import EXACT
from pww.transport.tensorfile import TensorReader
from pww.wire import Offer, PayloadInfo, RoundReport, Verdict, model_digest

WHO = "pww.train with resume=auto"
"""What is to be started again after a fault that nothing is lost by."""


class AllocationBooks:
    """`replica.together.Books` over a coordinator; `folder` is the run's central folder."""

    def __init__(self, coordinator: Coordinator, folder: Path) -> None:
        self._coordinator, self._published = coordinator, Published(folder)

    def open(self, seed: Path, *, pending: str = "") -> None:
        """Finds theta where the ledger stands, or takes `seed` as theta(0).

        `pending` is the delta of a checkpoint without verdict: the generation that it made stays,
        though the ledger does not name it yet.

        Raises:
            StateError: theta is gone or damaged, or the disk refused.
        """
        books = self._coordinator
        staged = pending in {one.offer.delta for one in books.staged()}
        if staged:
            self._published.generations.open(name_of(books.round + 1))
        self._published.recover(
            books.generation, round_=books.round, spare=books.round + 1 if staged else -1
        )
        if self._published.is_there:
            return
        with TensorReader(seed) as reader:
            info = PayloadInfo(codec=EXACT, size_bytes=reader.size_bytes, digest=reader.digest())
            model = model_digest({name: reader.shape(name) for name in reader.names})
        try:
            generation = write_theta0(self._published.generations, seed, info=info, model=model)
        except OSError as why:
            raise disk_refused("theta(0)", why, who=WHO) from why
        books.seed(generation=generation.name, state_hash=generation.info.state_hash)
        self._published.publish(generation)

    def theta(self) -> Theta:
        """Theta of the current round."""
        generation, books = self._published.current, self._coordinator
        return Theta(
            books.round, generation.theta, generation.info.state_hash, books.report(),
            books.committed_windows,
        )  # fmt: skip

    def momentum(self) -> Path:
        """The momentum beside it."""
        return self._published.current.momentum

    def receive(self, offer: Offer) -> Verdict | None:
        """Pins the tokens of a phase; a verdict if it is decided already."""
        return self._coordinator.receive(offer)

    @contextmanager
    def draft(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Draft]:
        """The next round's theta and momentum, complete and durable after the block."""
        number = self._coordinator.round + 1
        try:
            with self._published.generations.draft(number, shapes) as draft:
                yield draft
        except OSError as why:
            raise disk_refused(f"round {number}", why, who=WHO) from why

    def close(self, offer: Offer, report: RoundReport) -> Verdict:
        """The next round: what was received is merged, its tokens committed. Safe to repeat.

        Raises:
            StateError: the delta is not among those received.
        """
        books = self._coordinator
        if offer.delta in {one.offer.delta for one in books.staged()}:
            base = self._published.current
            generation = self._published.generations.open(name_of(books.round + 1))
            books.close_round(
                merged=(offer.delta,), generation=generation.name,
                state_hash=generation.info.state_hash, report=report,
            )  # fmt: skip
            self._published.publish(generation)
            self._published.generations.collect(keep={generation.name, base.name})
        for verdict in books.verdicts(offer.replica):
            if verdict.delta == offer.delta:
                return verdict
        raise StateError(f"delta {offer.delta} is not in the ledger: the state folder was replaced")
