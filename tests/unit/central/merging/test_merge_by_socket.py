"""The merge over books in another process: the same rounds to the bit, through lost answers, and
through restarts of either side at every point of a round.
"""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "programs"))

from books_relay import Fate, Relay

from pww.central.aggregator import Aggregator
from pww.central.audit import audit
from pww.central.books_server import BooksServer
from pww.central.coordinator import Coordinator
from pww.central.ledger import Ledger
from pww.central.member_feed import MemberFeed
from pww.central.remote_books import RemoteBooks
from pww.clock import SystemClock

CLOCK = SystemClock()


@pytest.fixture
def split(tmp_path: Path, make_world) -> Iterator:
    """A world whose merge has the books by a wire that loses every third call or answer."""

    class Split(make_world):  # type: ignore[misc, valid-type]
        relay: Relay | None = None
        stop = threading.Event()

        @property
        def space(self):
            return self.books._state.space

        def open(self) -> None:
            super().open()  # the folders of both, and the books
            self._serve()
            self.relay = Relay(self.folder / "wire", self._path, self._fate)
            self.open_merger()

        @property
        def _path(self) -> Path:
            return self.folder / "books" / "socket"

        def _serve(self) -> None:
            feed = MemberFeed()
            self.server = BooksServer(self.books, feed, path=self._path, clock=CLOCK)
            self.server.start()

        @staticmethod
        def _fate(name: str, before: int) -> Fate:
            if name == "attach" or before % 3 == 2:
                return "pass"
            return "lose the answer" if before % 2 else "lose the call"

        def open_merger(self) -> None:
            assert self.relay is not None
            self.remote = RemoteBooks(
                self.relay.path, name="run", clock=CLOCK, stop=self.stop,
                random=np.random.default_rng(0),
            )  # fmt: skip
            self.merger = Aggregator(
                self.remote, folder=self.state, diloco=self.diloco, clock=self.clock
            )

        def restart_coordinator(self) -> None:
            """Its process died: the ledger is all that is left of it."""
            self.server.close()
            self.ledger.close()
            self.ledger = Ledger(self.state / "ledger.sqlite")
            self.books = Coordinator(
                self.ledger, self.space, darl=self.books._leasing._darl, aggregator_port=0,
                clock=self.clock, staleness_window=self.diloco.staleness_window,
            )  # fmt: skip
            self._serve()

        def restart_aggregator(self) -> None:
            self.remote.close()
            self.open_merger()

        def close(self) -> None:
            assert self.relay is not None
            self.stop.set()
            self.remote.close()
            self.relay.close()
            self.server.close()
            self.ledger.close()

    made = Split(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("restarts", ["coordinator", "aggregator", "both"])
def test_rounds_are_numpys_to_the_bit(split, reference, delta_of, restarts: str) -> None:
    def restart() -> None:
        if restarts in ("coordinator", "both"):
            split.restart_coordinator()
        if restarts in ("aggregator", "both"):
            split.restart_aggregator()

    a, b = split.join("a/x"), split.join("b/y")
    for round_ in range(1, 3):
        deltas = [delta_of(10 * round_), delta_of(10 * round_ + 1)]
        leases = a.lease(), b.lease(6)
        restart()
        b.deliver(deltas[1], lease=leases[1])
        restart()
        assert split.merger.maybe_close() is None
        a.deliver(deltas[0], lease=leases[0])
        restart()
        report = split.merger.maybe_close()
        restart()
        reference.merge(deltas, tokens=[100, 300])
        assert split.matches(reference)
        assert split.books.round == split.remote.round == report.round == round_
        assert split.payloads() == []
        assert split.remote.report() == report
    assert split.relay is not None
    assert {"close_round", "receive", "staged", "head"} <= {
        n for n, k in split.relay.lost.items() if k
    }
    split.books.verify()
    told = audit(split.folder)
    assert told.ok
    assert (told.merges, told.lost, told.doubled) == (2, 0, 0)


def test_a_delta_that_cannot_be_merged_is_named_and_dropped(split, reference, delta_of) -> None:
    a, b = split.join("a/x"), split.join("b/y")
    leases = a.lease(), b.lease()
    verdict = b.deliver(None, lease=leases[1])
    assert verdict.outcome == "rejected"
    a.deliver(delta_of(1), lease=leases[0])
    report = split.merger.maybe_close()
    assert report.merged == ("a/x",)
    assert report.rejected == ("b/y: it is not finite (nan or inf at the site)",)
    reference.merge([delta_of(1)], tokens=[100])
    assert split.matches(reference)
