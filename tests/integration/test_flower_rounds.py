"""Real SuperLink, HTTP and keys: sites seed, train, lose the central, and nothing counts twice.

The inbox is a small book-keeper of its own. Its law: theta = theta(0) - the sum of the deltas that
it was handed under distinct ids, and every site's verdicts name exactly those.
"""

import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
import torch

from pww.clock import Clock, SystemClock
from pww.config.schema import Transport
from pww.errors import NotYet, Refused, Stopped
from pww.federation.fleet import FleetSite
from pww.federation.records import describe
from pww.federation.rounds import Rounds
from pww.federation.signing import Signer
from pww.federation.superlink import EmbeddedSuperLink
from pww.replica.federated import FederatedExchange
from pww.transport.payload import write_theta
from pww.transport.serve import AsgiServer
from pww.transport.tensorfile import TensorReader, state_hash
from pww.wire import Invitation, Leased, Offer, PayloadInfo, PhaseMetrics, Seed, Span, Verdict

RUN = "0" * 32
MODEL = "1" * 64
SHAPES = {"w": (1000,)}
TRANSPORT = Transport(
    kind="inline",
    url="none",
    down="whole",
    limit_mb=8,
    timeout_s=5.0,
    poll_s=0.05,
    retry_first_s=0.05,
    retry_max_s=0.3,
)
LIMIT_S = 40.0


def tensor_file(path: Path, value: float) -> Path:
    write_theta(path, [("w", torch.full((1000,), value))], SHAPES)
    return path


def value_of(path: Path) -> float:
    with TensorReader(path) as reader:
        tensor = reader.get("w")
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0])


@dataclass(frozen=True)
class Person:
    replica: str
    incarnation: str
    node_key: str


@dataclass
class Books:
    """An inbox over plain attributes; it outlives the servers, as a ledger does."""

    folder: Path
    quorum: int
    members: dict[str, Person] = field(default_factory=dict)
    round: int = 0
    theta: Path | None = None
    deltas: dict[str, float] = field(default_factory=dict)  # id -> value, in order of arrival
    staged: dict[str, Offer] = field(default_factory=dict)
    decided: dict[str, list[Verdict]] = field(default_factory=dict)
    received: list[str] = field(default_factory=list)
    reject_next: set[str] = field(default_factory=set)
    seeds: list[str] = field(default_factory=list)
    fetching: set[str] = field(default_factory=set)  # replicas whose payload is on its way
    not_out: bool = False  # theta is not yet where it can be fetched

    def live(self) -> list[Person]:
        return list(self.members.values())

    def needs_seed(self) -> bool:
        return self.theta is None

    def invitation(
        self, replica: str, kind: str, *, holds: int = -1
    ) -> tuple[Invitation, Path | None]:
        if self.not_out and kind == "phase":
            raise NotYet("theta is on its way")
        verdicts = tuple(self.decided.get(replica, [])[-8:])
        if kind == "seed":
            blank = Invitation(
                committed_windows=0,
                kind="seed", run=RUN, round=0, state_hash="", payload=None, verdicts=verdicts,
                report=None,
            )  # fmt: skip
            return blank, None
        assert self.theta is not None
        told = Invitation(
            committed_windows=0,
            kind="phase", run=RUN, round=self.round, state_hash=state_hash(self.theta),
            payload=describe(self.theta, codec="fp32"), verdicts=verdicts, report=None,
        )  # fmt: skip
        return told, self.theta

    def accept_seed(self, seed: Seed, payload: Path) -> None:
        if self.theta is not None:
            return  # the first one wins
        self.seeds.append(seed.replica)
        self.theta = payload.rename(self.folder / "round-0.safetensors")

    def accept_offer(self, offer: Offer, payload: Path | None) -> Verdict | None:
        self.received.append(offer.delta)
        if offer.replica in self.fetching:
            raise NotYet("it is being fetched")
        if offer.carried:
            payload = self.folder / "carried" / offer.payload.digest
        for verdict in self.decided.get(offer.replica, []):
            if verdict.delta == offer.delta:
                return verdict
        if offer.delta in self.staged:
            return None
        if offer.replica in self.reject_next or payload is None:
            self.reject_next.discard(offer.replica)
            return self._decide(offer, "rejected", "no payload" if payload is None else "test")
        self.deltas[offer.delta] = value_of(payload)
        self.staged[offer.delta] = offer
        return None

    def _decide(self, offer: Offer, outcome: str, reason: str = "") -> Verdict:
        verdict = Verdict(delta=offer.delta, outcome=outcome, round=self.round, reason=reason)
        self.decided.setdefault(offer.replica, []).append(verdict)
        return verdict

    def tick(self) -> None:
        if self.theta is None or len(self.staged) < self.quorum:
            return
        value = value_of(self.theta) - sum(self.deltas[d] for d in self.staged)
        self.round += 1
        self.theta = tensor_file(self.folder / f"round-{self.round}.safetensors", value)
        for offer in self.staged.values():
            self._decide(offer, "merged")
        self.staged.clear()

    def finished(self) -> bool:
        return False


class Central:
    """One life of the server side over books that stay."""

    def __init__(
        self,
        books: Books,
        folder: Path,
        port: int = 0,
        *,
        seed_ttl_s: float = 30.0,
        wrap: Callable[[Any], Any] = lambda app: app,
    ) -> None:
        self.books, self.folder = books, folder
        self.link = EmbeddedSuperLink(folder, limit_mb=8)
        self.app = wrap(self.link.app)
        self.server = AsgiServer(host="127.0.0.1", port=port, key="central.aggregator_port")
        self.stop = threading.Event()
        self.ready = threading.Event()
        self.faults: list[BaseException] = []
        self.rounds = Rounds(
            self.link, books, folder=folder / "incoming", clock=SystemClock(), limit_mb=8,
            seed_ttl_s=seed_ttl_s,
        )  # fmt: skip
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert self.ready.wait(LIMIT_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _serve(self) -> None:
        try:
            with self.link.run():
                self.server.start(self.app, name="aggregator")
                self.ready.set()
                self.rounds.run(self.stop)
        except BaseException as fault:
            self.faults.append(fault)
            self.ready.set()

    def close(self) -> None:
        self.stop.set()
        self.thread.join(LIMIT_S)
        self.server.stop()
        self.link.close()
        assert not self.faults


class Site:
    """One replica with its exchange."""

    def __init__(
        self,
        name: str,
        address: str,
        folder: Path,
        *,
        seed_value: float = 100.0,
        clock: Clock = SystemClock(),
    ) -> None:
        self.stop = threading.Event()
        self.fleet = FleetSite(
            address, TRANSPORT, signer=Signer.new(clock=clock), clock=clock, stop=self.stop,
            random=np.random.default_rng(sum(name.encode())), heartbeat_s=10.0,
        )  # fmt: skip
        self.person = Person(name, uuid4().hex, self.fleet.public_pem)
        self.folder = folder / name.replace("/", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.reregistered = 0
        self.exchange = FederatedExchange(
            self.fleet, run=RUN, replica=name, incarnation=self.person.incarnation, model=MODEL,
            seed=tensor_file(self.folder / "seed.safetensors", seed_value),
            folder=self.folder / "theta", limit_mb=8, poll_s=0.05, clock=clock, stop=self.stop,
            reregister=self._reregister,
        )  # fmt: skip

    def _reregister(self) -> None:
        self.reregistered += 1

    def offer(self, base_round: int, value: float, **changes: object) -> tuple[Offer, Path]:
        delta = uuid4().hex
        path = tensor_file(self.folder / f"{delta}.safetensors", value)
        metrics = PhaseMetrics(steps=1, tokens=7, loss=1.0, phase_seconds=1.0, tokens_per_s=7.0)
        offer = Offer(
            run=RUN, replica=self.person.replica, incarnation=self.person.incarnation, delta=delta,
            prev="", base_round=base_round, base_hash="e" * 64,
            spans=(Leased(lease=1, span=Span(0, 1)),), tokens=7,
            partial=False, finite=True, payload=describe(path, codec="fp32"), metrics=metrics,
        )  # fmt: skip
        return offer.model_copy(update=changes), path

    def close(self) -> None:
        self.stop.set()
        self.exchange.close()


@dataclass
class World:
    folder: Path
    books: Books
    central: Central
    sites: list[Site] = field(default_factory=list)

    def site(self, name: str, *, admit: bool = True, **more: Any) -> Site:
        site = Site(name, self.central.address, self.folder, **more)
        self.sites.append(site)
        if admit:
            self.central.link.joined(site.person)
            self.books.members[site.person.incarnation] = site.person
        return site

    def close(self) -> None:
        for site in self.sites:
            site.close()
        self.central.close()

    def restart(self) -> None:
        port = self.central.server.port
        self.central.close()
        self.central = Central(self.books, self.folder / "state", port)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    books = Books(tmp_path, quorum=2)
    built = World(tmp_path, books, Central(books, tmp_path / "state"))
    yield built
    built.close()


def both(*calls: object) -> list[object]:
    """Runs calls at the same time; their results, or the first fault."""
    results: list[object] = [None] * len(calls)

    def run(index: int, call: object) -> None:
        try:
            results[index] = call()  # type: ignore[operator]
        except BaseException as fault:
            results[index] = fault

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a call did not end"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def phases(site: Site, values: list[float]) -> list[tuple[int, Verdict]]:
    """Trains: pulls theta, checks it, hands in a delta; (base round, verdict) of each phase."""
    done = []
    for value in values:
        theta = site.exchange.pull()
        assert state_hash(theta.path) == theta.state_hash
        offer, path = site.offer(theta.round, value)
        done.append((theta.round, site.exchange.push(offer, path)))
    return done


def test_sites_that_were_seeded_differently_start_from_one_theta(world: World) -> None:
    values = {"s/a": 100.0, "s/b": 7.0}
    a, b = (world.site(name, seed_value=value) for name, value in values.items())
    thetas = both(a.exchange.pull, b.exchange.pull)
    (winner,) = world.books.seeds
    assert [value_of(theta.path) for theta in thetas] == [values[winner]] * 2  # type: ignore[attr-defined]
    hashes = {(theta.round, state_hash(theta.path)) for theta in thetas}  # type: ignore[attr-defined]
    assert hashes == {(0, thetas[0].state_hash)}  # type: ignore[attr-defined]


def test_two_sites_seed_once_and_merge_every_delta_once(world: World) -> None:
    a, b = world.site("s/a", seed_value=100.0), world.site("s/b", seed_value=100.0)
    done = both(lambda: phases(a, [1.0, 2.0, 4.0]), lambda: phases(b, [8.0, 16.0, 32.0]))
    assert len(world.books.seeds) == 1
    for one in done:
        assert [base for base, _ in one] == [0, 1, 2]  # type: ignore[attr-defined]
        assert {v.outcome for _, v in one} == {"merged"}  # type: ignore[attr-defined]
    assert world.books.round == 3
    # The invitation that brought the last verdict is in hand: no further wait.
    theta = a.exchange.pull(3)
    assert (theta.round, value_of(theta.path)) == (3, 100.0 - 63.0)
    assert len(list((a.folder / "theta").glob("theta-*"))) == 2
    assert len(world.books.received) == 6


class Folder:
    """A carrier to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def put(self, path: Path, info: PayloadInfo) -> None:
        (self.folder / info.digest).write_bytes(path.read_bytes())

    def get(self, info: PayloadInfo, path: Path) -> None:
        raise AssertionError("theta lies beside its message")


def test_nobody_waits_for_a_payload_that_is_being_fetched(world: World) -> None:
    """Its site sends once; the others' deltas are merged, and their thetas go out, meanwhile."""
    books = world.books
    books.quorum = 1
    slow, fast = world.site("s/slow"), world.site("s/fast")
    both(slow.exchange.pull, fast.exchange.pull)
    slow.exchange._carrier = Folder(world.folder / "carried")  # type: ignore[assignment]
    books.fetching.add("s/slow")
    verdicts: list[Verdict] = []
    offer, path = slow.offer(0, 1.0)
    waiting = threading.Thread(target=lambda: verdicts.append(slow.exchange.push(offer, path)))
    waiting.start()
    assert [v.round for _, v in phases(fast, [2.0, 4.0])] == [1, 2]
    assert fast.exchange.pull(2).round == 2
    until_s = SystemClock().monotonic() + LIMIT_S
    while books.received.count(offer.delta) < 3 and SystemClock().monotonic() < until_s:
        waiting.join(0.05)
    assert books.received.count(offer.delta) >= 3, "it is asked for each turn"
    assert verdicts == []
    books.fetching.clear()
    waiting.join(LIMIT_S)
    assert [(v.outcome, v.round) for v in verdicts] == [("merged", 3)]
    assert value_of(slow.exchange.pull(3).path) == 100.0 - 7.0


def test_an_invitation_waits_until_theta_can_be_fetched(world: World) -> None:
    books = world.books
    books.quorum = 1
    site = world.site("s/a")
    site.exchange.pull()
    books.not_out = True
    waiting = threading.Thread(target=lambda: verdicts.append(phases(site, [1.0])))
    verdicts: list[list[tuple[int, Verdict]]] = []
    waiting.start()
    until_s = SystemClock().monotonic() + LIMIT_S
    while books.round == 0 and SystemClock().monotonic() < until_s:
        waiting.join(0.05)
    waiting.join(1.0)
    assert (books.round, verdicts) == (1, []), "merged, and not told yet"
    books.not_out = False
    waiting.join(LIMIT_S)
    assert [v.outcome for ((_, v),) in verdicts] == ["merged"]


def test_restart_of_the_central_in_mid_round(world: World) -> None:
    a, b = world.site("s/a"), world.site("s/b")
    both(lambda: phases(a, [1.0]), lambda: phases(b, [2.0]))
    theta_a, theta_b = both(lambda: a.exchange.pull(1), lambda: b.exchange.pull(1))
    offer, path = a.offer(theta_a.round, 4.0)  # type: ignore[attr-defined]
    waiting = threading.Thread(target=lambda: verdicts.append(a.exchange.push(offer, path)))
    verdicts: list[Verdict] = []
    waiting.start()
    for _ in range(200):  # a's delta is staged at the central
        if offer.delta in world.books.staged:
            break
        waiting.join(0.05)
    world.restart()
    # b trained through the restart; its old invitation is void, its delta is not.
    done = both(lambda: b.exchange.push(*b.offer(theta_b.round, 8.0)))  # type: ignore[attr-defined]
    waiting.join(LIMIT_S)
    assert [v.outcome for v in [*verdicts, *done]] == ["merged"] * 2  # type: ignore[union-attr]
    assert value_of(a.exchange.pull(2).path) == 100.0 - 15.0
    assert world.books.received.count(offer.delta) >= 2  # offered again, counted once


def test_restart_without_the_database_heals_itself(world: World) -> None:
    a, b = world.site("s/a"), world.site("s/b")
    both(lambda: phases(a, [1.0]), lambda: phases(b, [2.0]))
    port = world.central.server.port
    world.central.close()
    for file in (world.folder / "state").glob("superlink.db*"):
        file.unlink()
    world.central = Central(world.books, world.folder / "state", port)
    both(lambda: phases(a, [4.0]), lambda: phases(b, [8.0]))
    assert value_of(a.exchange.pull(2).path) == 100.0 - 15.0


def test_a_rejected_delta_is_invited_again_in_the_same_round(world: World) -> None:
    a, b = world.site("s/a"), world.site("s/b")
    both(a.exchange.pull, b.exchange.pull)
    world.books.reject_next.add("s/a")
    [(base, verdict)] = phases(a, [1.0])
    assert (base, verdict.outcome, verdict.reason) == (0, "rejected", "test")
    done = both(lambda: phases(a, [2.0]), lambda: phases(b, [4.0]))
    assert [one[0][0] for one in done] == [0, 0]  # type: ignore[index]
    assert value_of(a.exchange.pull(1).path) == 100.0 - 6.0


def test_a_delta_that_is_not_finite_travels_without_bytes(world: World) -> None:
    a = world.site("s/a")
    a.exchange.pull()
    offer, path = a.offer(0, 1.0, finite=False)
    path.unlink()
    assert a.exchange.push(offer, path).reason == "no payload"


def test_offering_a_decided_delta_again_gives_the_same_verdict(world: World) -> None:
    world.books.quorum = 1
    a = world.site("s/a")
    a.exchange.pull()
    offer, path = a.offer(0, 1.0)
    first = a.exchange.push(offer, path)
    again = FederatedExchange(
        a.fleet, run=RUN, replica="s/a", incarnation=a.person.incarnation, model=MODEL,
        seed=a.folder / "seed.safetensors", folder=a.folder / "theta2", limit_mb=8, poll_s=0.05,
        clock=SystemClock(), stop=a.stop, reregister=a._reregister,
    )  # fmt: skip
    # Its memory is gone, as after a crash: it holds no invitation and knows no verdict.
    a.fleet.ask_again()
    assert again.push(offer, path) == first
    assert world.books.round == 1


def test_a_late_delta_of_a_closed_round_arrives(world: World) -> None:
    world.books.quorum = 1
    slow, fast = world.site("s/slow"), world.site("s/fast")
    both(slow.exchange.pull, fast.exchange.pull)
    phases(fast, [1.0, 2.0])
    [(base, verdict)] = phases(slow, [4.0])
    assert (base, verdict.outcome, verdict.round) == (0, "merged", 3)
    assert len(world.books.received) == 3
    assert value_of(slow.exchange.pull(3).path) == 100.0 - 7.0


def test_pull_of_a_newer_round_gives_the_old_invitation_up(world: World) -> None:
    world.books.quorum = 1
    idle, busy = world.site("s/idle"), world.site("s/busy")
    both(idle.exchange.pull, busy.exchange.pull)
    phases(busy, [1.0, 2.0])
    assert idle.exchange.pull(0).round == 0
    assert idle.exchange.pull(2).round == 2


def test_the_seed_claim_passes_on(tmp_path: Path) -> None:
    books = Books(tmp_path, quorum=1)
    world = World(tmp_path, books, Central(books, tmp_path / "state", seed_ttl_s=1.0))
    try:
        deaf, willing = world.site("s/a"), world.site("s/b", seed_value=7.0)
        deaf.fleet.receive()  # online, then silent: holds the claim and never answers
        assert value_of(willing.exchange.pull().path) == 7.0
        assert books.seeds == ["s/b"]
    finally:
        world.close()


def test_an_unknown_key_is_refused_and_registers_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = world.site("s/stranger", admit=False)

    def reregister() -> None:
        stranger.stop.set()

    stranger.exchange._reregister = reregister
    with pytest.raises(Stopped, match="stopped while waiting for theta"):
        stranger.exchange.pull()
    assert world.books.received == []


def test_a_member_that_was_silent_comes_back_with_the_same_key(world: World) -> None:
    world.books.quorum = 1
    a = world.site("s/a")
    a.exchange.pull()
    offer, path = a.offer(0, 1.0)
    del world.books.members[a.person.incarnation]
    world.central.link.left(a.person)
    for _ in range(200):
        if not world.central.rounds._members:
            break
        a.stop.wait(0.02)
    world.central.link.joined(a.person)
    world.books.members[a.person.incarnation] = a.person
    assert a.exchange.push(offer, path).outcome == "merged"


def test_a_replaced_incarnation_is_locked_out(world: World) -> None:
    world.books.quorum = 1
    old = world.site("s/a")
    old.exchange.pull()
    del world.books.members[old.person.incarnation]
    new = world.site("s/a")
    assert new.exchange.pull().round == 0
    with pytest.raises(Refused, match="withdrawn before"):
        world.central.link.joined(old.person)
    old.exchange._reregister = old.stop.set
    with pytest.raises(Stopped):
        old.exchange.push(*old.offer(0, 1.0))
    assert world.books.received == []


def test_a_reply_in_the_name_of_another_replica_is_refused(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = world.site("s/a"), world.site("s/b")
    both(a.exchange.pull, b.exchange.pull)
    forged, path = a.offer(0, 1.0, replica="s/b", incarnation=b.person.incarnation)
    pushing = threading.Thread(target=lambda: _quiet(lambda: a.exchange.push(forged, path)))
    with caplog.at_level(logging.ERROR, "pww.federation.rounds"):
        pushing.start()
        for _ in range(200):
            if "s/a sent a message in the name of s/b" in caplog.text:
                break
            pushing.join(0.05)
    assert "s/a sent a message in the name of s/b" in caplog.text
    a.stop.set()
    pushing.join(LIMIT_S)
    assert world.books.received == []


def _quiet(call: object) -> None:
    with suppress(Stopped):
        call()  # type: ignore[operator]


def test_another_run_is_refused(world: World) -> None:
    a = world.site("s/a")
    a.exchange._run = "f" * 32
    with pytest.raises(Refused, match="this replica belongs to run ffff"):
        a.exchange.pull()


class Skewed(SystemClock):
    """A machine whose clock is off."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def wall(self) -> float:
        return super().wall() + self.ahead_s


@pytest.mark.parametrize("ahead_s", [60.0, -4000.0])
def test_a_site_with_a_wrong_clock_takes_part(
    world: World, caplog: pytest.LogCaptureFixture, ahead_s: float
) -> None:
    world.books.quorum = 1
    a = world.site("s/a", clock=Skewed(ahead_s))
    assert phases(a, [1.0])[0][1].outcome == "merged"
    assert "the central's; corrected here, but NTP should do it" in caplog.text


def test_a_payload_at_the_limit_travels_both_ways(world: World) -> None:
    world.books.quorum = 1
    a = world.site("s/a")
    count = 8_000_000 // 4 - 100  # with the header just below 8 MB, in two objects
    shapes = {"w": (count,)}
    write_theta(a.exchange._seed, [("w", torch.rand(count))], shapes)
    theta = a.exchange.pull()
    assert 7_999_000 < theta.path.stat().st_size <= 8_000_000
    assert theta.path.read_bytes() == a.exchange._seed.read_bytes()


def test_a_reply_over_the_central_limit_is_named_there(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = world.site("s/a")
    a.exchange.pull()
    large = world.folder / "large"
    large.write_bytes(bytes(12_000_000))  # three chunks, of which two are one object
    offer, _ = a.offer(0, 1.0, payload=describe(large, codec="fp32"))
    a.exchange._limit_mb = 16
    pushing = threading.Thread(target=lambda: _quiet(lambda: a.exchange.push(offer, large)))
    pushing.start()
    for _ in range(400):
        if "too many" in caplog.text:
            break
        pushing.join(0.05)
    assert re.search(
        r"no reply of s/a: the reply unpacks to 1200\d{4} bytes, too many", caplog.text
    )
    a.stop.set()
    pushing.join(LIMIT_S)
    assert world.books.received == []


def test_what_the_gate_lets_through(world: World) -> None:
    headers = {"content-type": "application/protobuf"}
    with httpx.Client(base_url=f"http://{world.central.address}", trust_env=False) as client:
        for path in ("/v1/control/start-run", "/v1/control/list-runs", "/v1/runtime/pull-messages",
                     "/v1/fleet/register-node", "/v1/fleet/get-fab", "/docs", "/"):  # fmt: skip
            assert client.post(path, content=b"", headers=headers).status_code == 404, path
        assert client.post("/v1/fleet/pull-messages", content=b"").status_code == 415
        unsigned = client.post("/v1/fleet/pull-messages", content=b"", headers=headers)
        assert unsigned.status_code == 401
        assert client.get("/v1/fleet/pull-messages").status_code == 405
        assert client.post("/health", content=b"x").status_code == 405
        assert client.get("/health").status_code == 200
        chunked = client.post("/v1/fleet/push-object", content=iter([b"x"]), headers=headers)
        assert chunked.status_code == 411
    # The head alone is refused: no byte of the body is waited for.
    host, port = world.central.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as raw:
        head = (
            f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: {17 << 20}\r\n\r\n"
        )
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


LOSSY = ("pull-messages", "pull-object", "confirm-message-received", "push-messages",
         "push-object", "deactivate-node")  # fmt: skip


class Lossy:
    """Does what is asked and loses the answer: the first and the third of each call."""

    def __init__(self, app: Any) -> None:
        self.app, self.calls = app, Counter[str]()
        self.lost = Counter[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        call = scope["path"].rsplit("/", 1)[1]
        self.calls[call] += 1
        if call not in LOSSY or self.calls[call] not in (1, 3):
            await self.app(scope, receive, send)
            return
        self.lost[call] += 1

        async def drop(message: Any) -> None:
            pass

        await self.app(scope, receive, drop)
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def test_lost_answers_cost_time_but_nothing_else(tmp_path: Path) -> None:
    books = Books(tmp_path, quorum=2)
    central = Central(books, tmp_path / "state", wrap=Lossy)
    world = World(tmp_path, books, central)
    try:
        a, b = world.site("s/a"), world.site("s/b")
        done = both(lambda: phases(a, [1.0, 2.0]), lambda: phases(b, [4.0, 8.0]))
        assert {v.outcome for one in done for _, v in one} == {"merged"}  # type: ignore[attr-defined]
        assert value_of(a.exchange.pull(2).path) == 100.0 - 15.0
        assert len(books.deltas) == 4
        assert all(central.app.lost[call] == 2 for call in LOSSY)  # type: ignore[attr-defined]
    finally:
        world.close()
