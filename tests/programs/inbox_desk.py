"""A central without its ports, and replicas that send what they are told to."""

from pathlib import Path

import torch
from lone_replica import SHAPES, SPACE, TOKENS, config

from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.inbox import CentralInbox
from pww.central.ledger import Ledger
from pww.clock import ManualClock
from pww.codec import codec_named
from pww.log import read_json_lines
from pww.metrics import Metrics
from pww.transport.payload import write_payload, write_theta
from pww.wire import Acquire, Leased, Leave, Offer, PhaseMetrics, Register, Seed, model_digest


class Central:
    """A central without its ports; `reopen` is a restart."""

    def __init__(self, folder: Path, *, carried=None) -> None:
        """`carried` makes, in each life, what brings payloads that are not beside a message."""
        self.folder, self.clock, self._tokens = folder, ManualClock(100.0), 0
        self._carried = carried or (lambda: None)
        self.open()

    def open(self) -> None:
        state = self.folder / "central"
        state.mkdir(exist_ok=True)
        self.ledger = Ledger(state / "ledger.sqlite")
        self.books = Coordinator(
            self.ledger, SPACE, darl=config().darl, aggregator_port=1, clock=self.clock
        )
        self.carried = self._carried()
        merger = Aggregator(
            self.books, folder=state, diloco=config().diloco, clock=self.clock, shelf=self.carried
        )
        self.merger = merger
        noted = read_json_lines(self.folder / "metrics.jsonl")
        self.metrics = Metrics(
            self.folder, project="p", group="g", name="n", wandb_id="i", mode="disabled", config={}
        )
        self.inbox = CentralInbox(
            self.books, merger, self.metrics, clock=self.clock, address="http://x:1", noted=noted,
            carried=self.carried,
        )  # fmt: skip

    def close(self) -> None:
        self.metrics.close()
        self.ledger.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def rows(self, split: str) -> list[dict]:
        rows = read_json_lines(self.folder / "metrics.jsonl")
        return [row for row in rows if row.get("split") == split]

    def token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:032x}"

    def join(self, replica: str) -> "Site":
        return Site(self, replica)


class Site:
    """A replica that sends what it is told to."""

    def __init__(self, central: Central, replica: str) -> None:
        self.central, self.replica, self.incarnation = central, replica, central.token()
        self.prev = ""
        central.books.register(
            Register(
                replica=replica, incarnation=self.incarnation, node_key="", run="",
                space=SPACE.info(), model=model_digest(SHAPES), last_round=0,
            )
        )  # fmt: skip

    def seed(self) -> Path:
        path = self.central.folder / "incoming-seed"
        tensors = [(name, torch.ones(shape)) for name, shape in SHAPES.items()]
        info = write_theta(path, tensors, SHAPES)
        self.central.inbox.accept_seed(
            Seed(
                run=self.central.books.run, replica=self.replica, incarnation=self.incarnation,
                model=model_digest(SHAPES), payload=info,
            ),
            path,
        )  # fmt: skip
        return path

    def acquire(self):
        return self.central.books.acquire(
            Acquire(
                replica=self.replica, incarnation=self.incarnation, key=self.central.token(),
                num_blocks=2, ttl_s=1e4,
            )
        ).answer  # fmt: skip

    def offer(self, lease=None, *, held_out: float = -1.0, loss: float = 2.5, **changes):
        lease = lease or self.acquire().lease
        tokens = TOKENS * SPACE.num_span_windows(lease.span)
        path = self.central.folder / f"incoming-{self.central.token()}"
        tensors = [(name, torch.full(shape, 0.5)) for name, shape in SHAPES.items()]
        info = write_payload(path, tensors, SHAPES, codec_named("fp32"))
        fields = {
            "run": self.central.books.run, "replica": self.replica,
            "incarnation": self.incarnation, "delta": self.central.token(), "prev": self.prev,
            "base_round": self.central.books.round,
            "spans": (Leased(lease=lease.id, span=lease.span),), "tokens": tokens, "partial": False,
            "finite": True, "payload": info,
            "metrics": PhaseMetrics(
                steps=2, tokens=tokens, loss=loss, phase_seconds=2.0, tokens_per_s=32.0,
                held_out_loss=held_out, held_out_tokens=100 if held_out >= 0 else 0,
            ),
        } | changes  # fmt: skip
        fields["base_hash"] = self.central.books.hash_of(fields["base_round"]) or "0" * 64
        return Offer(**fields), path

    def deliver(self, **changes):
        offer, path = self.offer(**changes)
        verdict = self.central.inbox.accept_offer(offer, path)
        assert not path.exists()
        if verdict is None:
            self.prev = offer.delta
        return verdict

    def leave(self) -> None:
        self.central.books.leave(Leave(replica=self.replica, incarnation=self.incarnation))
