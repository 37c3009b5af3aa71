"""A coordinator on a folder, under a manual clock, and sites that speak to it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pww.central.coordinator import Coordinator, Member
from pww.central.ledger import Ledger
from pww.clock import ManualClock
from pww.config.schema import Darl
from pww.lease.space import BlockSpace
from pww.wire import (
    Acquire,
    Acquired,
    Granted,
    Heartbeat,
    Instruction,
    Lease,
    Leased,
    Leave,
    Offer,
    PayloadInfo,
    PhaseMetrics,
    Register,
    Registered,
    Release,
    Renewal,
    RoundReport,
)

DARL = Darl(
    block_windows=4,
    seed=1,
    epochs=1,
    ttl_floor_s=30.0,
    heartbeat_s=3.0,
    detect_s=10.0,
    restore_grace_s=60.0,
    ahead=False,
    max_attempts=0,
)
SPACE = BlockSpace(
    num_windows=78, block_windows=4, seed=1, epochs=1, window_tokens=9, corpus="c" * 64
)  # 20 blocks, the last of 2 windows
MODEL = "a" * 64
TARGETS = SPACE.window_tokens - 1
PAYLOAD = PayloadInfo(codec="fp32", size_bytes=1, digest="b" * 64)


@cache
def node_key(incarnation: str) -> str:
    """The public key of a process."""
    del incarnation  # one key each
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


class Gate:
    """Notes who was let in and out, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.open: set[str] = set()

    def joined(self, member: Member) -> None:
        self.seen.append(("joined", member.incarnation))
        self.open.add(member.incarnation)

    def left(self, member: Member) -> None:
        self.seen.append(("left", member.incarnation))
        self.open.discard(member.incarnation)


class Desk:
    """The central's books; `restart` is a new process on the same folder."""

    def __init__(
        self,
        folder: Path,
        *,
        space: BlockSpace = SPACE,
        seeded: bool = True,
        architecture: str = "",
    ) -> None:
        self.folder, self.space, self.architecture = folder, space, architecture
        self.clock, self.darl = ManualClock(), DARL
        self.tokens = 0
        self.make_gate = Gate
        self.open()
        if seeded:
            self.books.seed(generation="round-000000", state_hash="0" * 64)

    def open(self) -> None:
        self.gate = self.make_gate()
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.books = Coordinator(
            self.ledger,
            self.space,
            darl=self.darl,
            aggregator_port=29511,
            clock=self.clock,
            members=self.gate,
            staleness_window=2,
            architecture=self.architecture,
            new_run=self.token,
        )

    def restart(self) -> None:
        self.ledger.close()
        self.open()

    def token(self) -> str:
        self.tokens += 1
        return f"{self.tokens:032x}"

    def site(self, replica: str = "s/a", **changes: object) -> "Site":
        """Registers a new process."""
        site = Site(self, replica, self.token())
        site.registered = site.register(**changes)
        return site

    def report(self, *sites: str) -> RoundReport:
        return RoundReport(
            round=self.books.round + 1,
            merged=tuple(sites),
            rejected=(),
            tokens=1,
            loss=1.0,
            delta_norm=1.0,
            avg_delta_norm=1.0,
            agreement=1.0,
            drift_mean=0.0,
            drift_max=0.0,
            bytes_received=1,
            merge_seconds=0.1,
        )

    def merge(self, *offers: Offer) -> None:
        number = self.books.round + 1
        self.books.close_round(
            merged=[offer.delta for offer in offers],
            generation=f"round-{number:06d}",
            state_hash=f"{number:064x}",
            report=self.report(*(offer.replica for offer in offers)),
        )

    def coverage(self) -> tuple[int, int, int]:
        """Committed, leased, unassigned, as status says and the laws hold."""
        self.books.verify()
        c = self.books.status()["coverage"]
        assert c["committed"] + c["leased"] + c["unassigned"] == c["blocks"]
        return c["committed"], c["leased"], c["unassigned"]


@dataclass
class Site:
    """One process of one replica."""

    desk: Desk
    replica: str
    incarnation: str
    registered: Registered | None = None
    prev: str = ""

    def register(self, **changes: object) -> Registered:
        message = Register(
            replica=self.replica,
            incarnation=self.incarnation,
            node_key=node_key(self.incarnation),
            run="",
            space=self.desk.space.info(),
            model=MODEL,
            last_round=0,
        )
        return self.desk.books.register(
            Register.model_validate(message.model_copy(update=changes).model_dump())
        )

    def answer(self, blocks: int = 3, *, key: str = "", ttl_s: float = 30.0) -> Acquired:
        return self.desk.books.acquire(
            Acquire(
                replica=self.replica,
                incarnation=self.incarnation,
                key=key or self.desk.token(),
                num_blocks=blocks,
                ttl_s=ttl_s,
            )
        )

    def ask(self, blocks: int = 3, *, key: str = "", ttl_s: float = 30.0):
        return self.answer(blocks, key=key, ttl_s=ttl_s).answer

    def acquire(self, blocks: int = 3, *, key: str = "", ttl_s: float = 30.0) -> Lease:
        answer = self.ask(blocks, key=key, ttl_s=ttl_s)
        assert isinstance(answer, Granted), answer
        return answer.lease

    def release(self, *leases: Lease) -> None:
        who = {"replica": self.replica, "incarnation": self.incarnation}
        self.desk.books.release(Release(**who, leases=tuple(one.id for one in leases)))

    def beat(self, *leases: int, ttl_s: float = 30.0) -> Instruction:
        return self.desk.books.heartbeat(
            Heartbeat(
                replica=self.replica,
                incarnation=self.incarnation,
                leases=tuple(Renewal(id=lease, ttl_s=ttl_s) for lease in leases),
                windows_per_s=2.0,
            )
        )

    def leave(self, *keep: int) -> None:
        self.desk.books.leave(Leave(replica=self.replica, incarnation=self.incarnation, keep=keep))

    def offer(self, *leases: Lease, **changes: object) -> Offer:
        spans = changes.get("spans", tuple(Leased(lease=one.id, span=one.span) for one in leases))
        num_windows = sum(self.desk.space.num_span_windows(each.span) for each in spans)
        tokens = num_windows * TARGETS
        offer = Offer(
            run=self.desk.books.run,
            replica=self.replica,
            incarnation=self.incarnation,
            delta=self.desk.token(),
            prev=self.prev,
            base_round=self.desk.books.round,
            base_hash="0" * 64,
            spans=spans,
            tokens=tokens,
            partial=False,
            finite=True,
            payload=PAYLOAD,
            metrics=PhaseMetrics(
                steps=1, tokens=tokens, loss=1.0, phase_seconds=1.0, tokens_per_s=10.0
            ),
        )
        hashed = {"base_hash": f"{changes.get('base_round', offer.base_round):064x}"}
        return offer.model_copy(update=hashed | changes)

    def deliver(self, *leases: Lease, **changes: object) -> Offer:
        """A delta that is received and waits for its verdict."""
        offer = self.offer(*leases, **changes)
        assert self.desk.books.receive(offer) is None
        return offer

    def contribute(self, blocks: int = 3) -> Offer:
        """Acquire, deliver, merge."""
        offer = self.deliver(self.acquire(blocks))
        self.desk.merge(offer)
        self.prev = offer.delta
        return offer


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.books.verify()
    desk.ledger.close()


@pytest.fixture
def make_desk(tmp_path: Path):
    """Desks on folders of their own, closed afterwards."""
    made: list[Desk] = []

    def make(name: str = "other", **options: object) -> Desk:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        made.append(Desk(folder, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for desk in made:
        desk.ledger.close()


@pytest.fixture
def two_epochs() -> BlockSpace:
    return replace(SPACE, epochs=2)
