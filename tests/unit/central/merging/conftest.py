"""A small central over real books, sites with closed-form deltas, and NumPy to say what is right.

As a program it runs two rounds for each point named, each time in a child process that dies there
by `os._exit`, as by `kill -9`.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pww.central.aggregator import Aggregator
from pww.central.coordinator import Coordinator
from pww.central.generations import Draft, Generations
from pww.central.ledger import Ledger
from pww.central.payload_store import PayloadStore
from pww.clock import ManualClock
from pww.codec import codec_named
from pww.config import schema
from pww.lease.space import BlockSpace
from pww.transport.payload import write_payload, write_theta
from pww.transport.tensorfile import TensorReader
from pww.wire import (
    Acquire,
    Heartbeat,
    Leased,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    Register,
    Seed,
    Verdict,
    model_digest,
)

F = np.float32
SHAPES = {"embed.weight": (40, 3), "scale": (), "last.weight": (7,)}
MODEL = model_digest(SHAPES)
NO_BYTES = PayloadInfo(
    codec="none",
    size_bytes=0,
    digest="af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
)
SPACE = BlockSpace(
    num_windows=400, block_windows=2, seed=3, epochs=1, window_tokens=26, corpus="c" * 64
)
BLOCK_TOKENS = 2 * 25
"""A delta's tokens are those of its blocks, so a test that wants a weight leases as many."""
DARL = schema.Darl(
    block_windows=2, seed=3, epochs=1, ttl_floor_s=60.0, heartbeat_s=3.0, detect_s=10.0,
    restore_grace_s=30.0, ahead=False, max_attempts=0,
)  # fmt: skip
DILOCO = schema.Diloco(
    phase="fixed",
    replicas=1,
    inner_steps=10,
    outer=schema.Outer(optimizer="nesterov", lr=0.7, momentum=0.9, solo_full_step=False),
    overlap=False,
    staleness_window=2,
    staleness_discount=0.25,
    norm_clip=0.0,
    quorum=0.5,
    grace=0.1,
)


def values(seed: int) -> dict[str, torch.Tensor]:
    """Parameters or a delta, by number."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


class Reference:
    """The run in NumPy, from the formulas alone."""

    def __init__(self) -> None:
        self.theta = {name: t.numpy() for name, t in values(0).items()}
        self.momentum = {name: np.zeros_like(t) for name, t in self.theta.items()}
        self.norm = 0.0

    def merge(self, deltas, *, tokens, late=None, partial=False, lr=F(0.7), b=F(0.9)) -> None:
        """One outer step by `deltas`, in replica order."""
        late = late or [0] * len(deltas)
        weights = [F(t / sum(tokens) / (1 + 0.25 * s)) for t, s in zip(tokens, late, strict=True)]
        b = F(0) if partial else b
        square = 0.0
        for name in self.theta:
            acc = deltas[0][name].numpy() * weights[0]
            for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                x = delta[name].numpy() * weight
                acc = acc + x
            m = self.momentum[name] * b
            m = m + acc
            u = m * b
            u = acc + u
            u = u * lr
            self.theta[name] = self.theta[name] - u
            if not partial:
                self.momentum[name] = m
            square += float((acc.astype(np.float64) ** 2).sum())
        self.norm = square**0.5


@dataclasses.dataclass
class Site:
    """One replica: leases for real, and makes deltas out of a number."""

    world: "World"
    replica: str
    incarnation: str
    prev: str = ""

    def lease(self, num_blocks: int = 2):
        """A real lease, and the round that it would train from."""
        key = self.world.token()
        answer = self.world.books.acquire(
            Acquire(
                replica=self.replica, incarnation=self.incarnation, key=key,
                num_blocks=num_blocks, ttl_s=8e4,
            )
        ).answer  # fmt: skip
        return answer.lease, self.world.books.round

    def offer(self, delta, *, lease=None, codec="fp32", **changes):
        """An offer over a leased span, with its payload on the site's disk."""
        lease, base = lease or self.lease(changes.pop("tokens", 100) // BLOCK_TOKENS)
        tokens = len(lease.span) * BLOCK_TOKENS
        name = self.world.token()
        path = self.world.folder / f"{name}.delta"
        if delta is None:
            info = NO_BYTES
        else:
            shapes = {n: tuple(t.shape) for n, t in delta.items()}
            info = write_payload(path, delta.items(), shapes, codec_named(codec))
        told = {
            "steps": 10, "tokens": tokens, "loss": 2.0, "phase_seconds": 20.0, "tokens_per_s": 5.0,
            "drift": 0.1,
        }  # fmt: skip
        metrics = PhaseMetrics(**told).model_copy(update=changes.pop("metrics", {}))
        fields = {
            "run": self.world.books.run, "replica": self.replica,
            "incarnation": self.incarnation, "delta": name, "prev": self.prev,
            "base_round": base, "spans": (Leased(lease=lease.id, span=lease.span),),
            "tokens": tokens, "partial": False, "finite": delta is not None, "payload": info,
            "metrics": metrics,
        }  # fmt: skip
        fields |= changes
        hash_of = self.world.books.hash_of
        fields.setdefault("base_hash", hash_of(fields["base_round"]) or "0" * 64)
        offer = Offer(**fields)
        path.with_suffix(".json").write_text(offer.model_dump_json())
        return offer, path

    def deliver(self, delta, **changes) -> Verdict | None:
        """Leases, offers and hands in; the delta becomes the next one's `prev`."""
        offer, path = self.offer(delta, **changes)
        verdict = self.world.merger.accept(offer, path)
        if verdict is None:
            self.prev = offer.delta
        return verdict


class World:
    """A central in a folder; `reopen` is a restart."""

    diloco = DILOCO

    def __init__(
        self,
        folder: Path,
        *,
        diloco: schema.Diloco = DILOCO,
        seeded: bool = True,
        keep_deltas: bool = False,
        **publishing,
    ) -> None:
        self.folder, self.diloco, self.keep_deltas = folder, diloco, keep_deltas
        self.publishing = publishing
        self.clock = ManualClock(1000.0)
        self._tokens = 0
        self.open()
        if seeded:
            self.seed()

    @property
    def state(self) -> Path:
        """The central's state folder."""
        return self.folder / "central"

    def open(self) -> None:
        """Starts the central where its folder stands."""
        self.state.mkdir(exist_ok=True)
        self.ledger = Ledger(self.state / "ledger.sqlite")
        self.books = Coordinator(
            self.ledger, SPACE, darl=DARL, aggregator_port=0, clock=self.clock,
            staleness_window=self.diloco.staleness_window,
        )  # fmt: skip
        self.merger = Aggregator(
            self.books, folder=self.state, diloco=self.diloco, clock=self.clock,
            keep_deltas=self.keep_deltas, **self.publishing,
        )  # fmt: skip

    def reopen(self) -> None:
        """A new process on the old folder."""
        self.ledger.close()
        self.open()

    def token(self) -> str:
        """The next 32 hex digits."""
        self._tokens += 1
        return f"{self._tokens:032x}"

    def seed_message(self, path: Path, tensors=None) -> Seed:
        """theta(0) as a site would send it."""
        tensors = tensors or values(0)
        info = write_theta(path, tensors.items(), {n: tuple(t.shape) for n, t in tensors.items()})
        return Seed(
            run=self.books.run, replica="a/x", incarnation="0" * 32, model=MODEL, payload=info
        )

    def seed(self) -> None:
        """Publishes `values(0)`."""
        path = self.folder / "theta0"
        self.merger.accept_seed(self.seed_message(path), path)

    def join(self, replica: str, incarnation: str = "") -> Site:
        """A site registers."""
        site = Site(self, replica, incarnation or self.token())
        self.books.register(
            Register(
                replica=replica, incarnation=site.incarnation, node_key="", run="",
                space=SPACE.info(), model=MODEL, last_round=0,
            )
        )  # fmt: skip
        return site

    def beat(self, *sites: Site) -> None:
        """Heartbeats, so that nobody is taken for dead while the clock is advanced."""
        for site in sites:
            self.books.heartbeat(
                Heartbeat(replica=site.replica, incarnation=site.incarnation, leases=())
            )

    def generations(self) -> list[str]:
        """What lies in the folder of generations."""
        return sorted(os.listdir(self.state / "generations"))

    def payloads(self) -> list[str]:
        """What lies in the folder of payloads."""
        return sorted(os.listdir(self.state / "deltas"))

    def matches(self, reference: Reference) -> bool:
        """Whether theta and momentum are the reference's, bit for bit."""
        same = True
        for kind, expected in (("theta", reference.theta), ("momentum", reference.momentum)):
            with TensorReader(
                self.merger.published.current.theta.with_name(f"{kind}.safetensors")
            ) as reader:
                for name in SHAPES:
                    ours = reader.get(name).numpy().reshape(-1).view(np.uint32)
                    theirs = np.asarray(expected[name], dtype=F).reshape(-1).view(np.uint32)
                    same &= bool((ours == theirs).all())
        return same


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def make_world() -> type[World]:
    return World


@pytest.fixture
def reference() -> Reference:
    return Reference()


@pytest.fixture
def delta_of() -> Callable[[int], dict[str, torch.Tensor]]:
    return values


# ----------------------------------------------------------------------------- as a program


def _die(*_: object, **__: object) -> None:
    os._exit(9)


def _after(function, count=1):
    """`function`, and death after its `count`-th call."""
    calls = 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        result = function(*args, **kwargs)
        calls += 1
        if calls == count:
            os._exit(9)
        return result

    return wrapped


def die_at(point: str, world: World) -> None:
    """Arms one point."""
    match point:
        case "draft begun":
            Draft.put = _after(Draft.put)
        case "draft nearly whole":
            Draft.finish = _after(Draft.finish)
        case "generation durable":
            world.books.close_round = _die
        case "round closed":
            world.books.close_round = _after(world.books.close_round)
        case "one payload dropped":
            PayloadStore.drop = _after(PayloadStore.drop)
        case "collecting":
            Generations.collect = _die
        case "payload durable":
            PayloadStore.put = _after(PayloadStore.put, 2)
        case "delta booked":
            world.books.receive = _after(world.books.receive, 2)
        case "never":
            pass


def two_rounds(world: World, point: str) -> None:
    """Two sites, two rounds; `point` is armed in the second."""
    sites = [world.join("a/x", "a" * 32), world.join("b/y", "b" * 32)]
    for round_ in range(2):
        if round_ == 1:
            die_at(point, world)
        for i, site in enumerate(sites):
            site.deliver(values(10 * round_ + i + 1), tokens=100 * (i + 1))
        world.merger.maybe_close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for armed in sys.argv[2:]:
        child = os.fork()  # nothing has started a thread yet
        if child == 0:
            place = Path(sys.argv[1], armed)
            place.mkdir()
            two_rounds(World(place), armed)
            os._exit(0)
        print(armed, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep=":", flush=True)
