"""The exchange of a replica that trains alone: the real books and merge, without a network."""

import threading
from pathlib import Path

from pww.central.aggregator import Aggregator
from pww.errors import Unreachable
from pww.transport.exchange import Theta
from pww.transport.payload import EXACT
from pww.transport.tensorfile import TensorReader
from pww.wire import Offer, PayloadInfo, Seed, Verdict, model_digest

POLL_S = 0.05
PATIENCE_S = 60.0
"""Nobody else is waited for in a run of one replica, so a delta has its verdict long before."""
NOBODY = "0" * 32
"""The incarnation in a seed that nobody sends."""


class InProcessExchange:
    """`pww.transport.exchange.Exchange` over an `Aggregator` in this process.

    `seed` is a plain fp32 tensor file; it becomes theta(0) if the run has none yet.
    """

    def __init__(self, aggregator: Aggregator, *, replica: str, seed: Path) -> None:
        self._merger, self._replica, self._seed = aggregator, replica, seed
        self._closed = threading.Event()
        self.sent_bytes = 0
        """Of payloads so far, as a replica that is not alone would send."""

    def pull(self, newest: int = 0) -> Theta:
        """The current theta_outer, never older than `newest`: nobody else moves the round."""
        if self._merger.needs_seed:
            self._merger.accept_seed(self._seed_message(), self._seed)
        invitation, path = self._merger.invitation(self._replica, "phase")
        assert path is not None, "a phase comes with theta"
        assert invitation.round >= newest, "the books and the merge share one ledger"
        return Theta(
            invitation.round, path, invitation.state_hash, invitation.report,
            invitation.committed_windows,
        )  # fmt: skip

    def push(self, offer: Offer, payload: Path) -> Verdict:
        """Merges the delta and returns its verdict; the same id again returns the same verdict.

        Raises:
            Unreachable: the round did not close, because another replica is expected.
        """
        clock, books = self._merger.clock, self._merger.books
        deadline_s = clock.monotonic() + PATIENCE_S
        known = self._merger.verdict(offer) is not None or self._merger.has_staged(offer)
        verdict = self._merger.accept(offer, payload if offer.finite else None)
        if offer.finite and not known:
            self.sent_bytes += offer.payload.size_bytes
        while verdict is None:
            books.tick()
            self._merger.maybe_close()
            verdict = self._merger.verdict(offer)
            if verdict is None:
                if clock.monotonic() >= deadline_s:
                    raise Unreachable(
                        f"delta {offer.delta} has no verdict after {PATIENCE_S:.0f} s: the round "
                        f"waits for {', '.join(sorted(books.expected()))}, which should not train "
                        "on this run folder; stop it and go on with resume=auto"
                    )
                clock.wait(self._closed, POLL_S)
        return verdict

    def close(self) -> None:
        """Nothing to leave; ends the pauses of a waiting `push`."""
        self._closed.set()

    def _seed_message(self) -> Seed:
        with TensorReader(self._seed) as reader:
            info = PayloadInfo(codec=EXACT, size_bytes=reader.size_bytes, digest=reader.digest())
            model = model_digest({name: reader.shape(name) for name in reader.names})
        return Seed(
            run=self._merger.books.run,
            replica=self._replica,
            incarnation=NOBODY,
            model=model,
            payload=info,
        )
