"""One round of a tiny model through the real books and merge, after few rounds or very many.

The history is made by the real coordinator and ledger, call by call, with `synchronous` off for the
time of the making; what is measured runs with the ledger as it always is. A round is all that the
central does for it: the lease, the receipt of the delta, the merge, the commit, the row of metrics.
"""

import os
import shutil
import statistics
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import torch

from pww.central.aggregator import Aggregator
from pww.central.audit import audit
from pww.central.coordinator import Coordinator
from pww.central.inbox import CentralInbox
from pww.central.ledger import Ledger
from pww.central.merge import MergeResult
from pww.central.round_report import round_report
from pww.clock import ManualClock
from pww.codec import codec_named
from pww.config.load import compose
from pww.folder import write_durably
from pww.lease.space import BlockSpace
from pww.metrics import Metrics
from pww.transport.payload import write_payload, write_theta
from pww.wire import (
    Acquire,
    Granted,
    Leased,
    Offer,
    PhaseMetrics,
    Register,
    Seed,
    model_digest,
)

SHAPES = {"w": (256,), "b": (4,)}
SPACE = BlockSpace(
    num_windows=10**6, block_windows=1, seed=3, epochs=1, window_tokens=9, corpus="c" * 64
)
ROUNDS = 60
REPLICA, INCARNATION = "bench/a", "a" * 32


class World:
    """A central without ports and its only site."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.prev, self._tokens = folder, ManualClock(1000.0), "", 0
        self.open()
        theta = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        path = folder / "theta0"
        info = write_theta(path, theta.items(), SHAPES)
        self.books.register(
            Register(
                replica=REPLICA, incarnation=INCARNATION, node_key="", run="", space=SPACE.info(),
                model=model_digest(SHAPES), last_round=0,
            )
        )  # fmt: skip
        seed = Seed(
            run=self.books.run, replica=REPLICA, incarnation=INCARNATION,
            model=model_digest(SHAPES), payload=info,
        )  # fmt: skip
        self.merger.accept_seed(seed, path)
        self.delta = folder / "delta"
        self.info = write_payload(
            self.delta, ((n, t * 1e-6) for n, t in theta.items()), SHAPES, codec_named("fp32")
        )

    def open(self) -> None:
        config = compose([])
        state = self.folder / "central"
        state.mkdir(exist_ok=True)
        self.ledger = Ledger(state / "ledger.sqlite")
        self.books = Coordinator(
            self.ledger, SPACE, darl=config.darl, aggregator_port=1, clock=self.clock
        )
        self.merger = Aggregator(self.books, folder=state, diloco=config.diloco, clock=self.clock)
        self.metrics = Metrics(
            self.folder, project="p", group="g", name="n", wandb_id="i", mode="disabled", config={}
        )
        self.inbox = CentralInbox(
            self.books, self.merger, self.metrics, clock=self.clock, address="http://x:1"
        )

    def close(self) -> None:
        self.metrics.close()
        self.ledger.close()

    def token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:032x}"

    def offer(self) -> Offer:
        """A lease, and the delta computed from it."""
        answer = self.books.acquire(
            Acquire(
                replica=REPLICA, incarnation=INCARNATION, key=self.token(), num_blocks=4, ttl_s=8e4
            )
        ).answer
        assert isinstance(answer, Granted)
        lease, tokens = answer.lease, 32
        offer = Offer(
            run=self.books.run, replica=REPLICA, incarnation=INCARNATION, delta=self.token(),
            prev=self.prev, base_round=self.books.round,
            base_hash=self.books.state_hash,
            spans=(Leased(lease=lease.id, span=lease.span),), tokens=tokens, partial=False,
            finite=True, payload=self.info,
            metrics=PhaseMetrics(
                steps=1, tokens=tokens, loss=1.0, phase_seconds=1.0, tokens_per_s=1.0, drift=0.1
            ),
        )  # fmt: skip
        self.prev = offer.delta
        return offer

    def round(self) -> None:
        """A whole one."""
        assert self.inbox.accept_offer(self.offer(), None) is None
        before = self.books.round
        self.inbox.tick()
        assert self.books.round == before + 1

    def books_only(self, count: int) -> None:
        """So many rounds in the books, and the newest generation under the last one's name."""
        self.ledger._db.execute("PRAGMA synchronous=OFF")
        for _ in range(count):
            offer, number = self.offer(), self.books.round + 1
            assert self.books.receive(offer) is None
            result = MergeResult((offer.delta,), 32, False, 1.0, (1.0,), (), 1.0, 1.0)
            report = round_report(
                result, [offer], round_=number, rejected=(), bytes_received=1, merge_seconds=0.0
            )
            self.books.close_round(
                merged=result.merged, generation=f"round-{number:06d}",
                state_hash=self.books.state_hash, report=report,
            )  # fmt: skip
            self.inbox._write(report)
        self.close()
        generations = self.folder / "central" / "generations"
        (newest,) = generations.iterdir()
        info = newest / "generation.json"
        write_durably(
            info, info.read_bytes().replace(b'"round": 0,', f'"round": {number},'.encode())
        )
        newest.rename(generations / f"round-{number:06d}")
        self.open()


def round_ms(disk: Path, history: int) -> tuple[float, float, dict[str, object]]:
    """The median round after `history` rounds, in ms by the clock and of CPU; and what was on."""
    folder = Path(tempfile.mkdtemp(prefix="pww-bench-", dir=disk))
    try:
        world = World(folder)
        world.books_only(history)
        (synchronous,) = world.ledger.rows("PRAGMA synchronous")[0]
        (journal,) = world.ledger.rows("PRAGMA journal_mode")[0]
        took, used = [], []
        for _ in range(ROUNDS):
            shutil.copyfile(world.delta, folder / "in")
            begin, cpu = perf_counter(), process_time()
            offer = world.offer()
            assert world.inbox.accept_offer(offer, folder / "in") is None
            world.inbox.tick()
            took.append(perf_counter() - begin)
            used.append(process_time() - cpu)
        assert world.books.round == history + ROUNDS
        world.close()
        assert audit(folder).ok
        on = {"fsync": synchronous == 2 and os.fsync.__module__ == "posix", "journal": journal}
        return 1e3 * statistics.median(took), 1e3 * statistics.median(used), on
    finally:
        shutil.rmtree(folder)
