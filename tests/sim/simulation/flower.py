"""Flower, simulated: the link and grid of the central's loop, and the site's end of it.

It keeps what flwr promises and no more: an instruction is handed out once; a reply to a cancelled
one, or to one of an earlier life of the central, is dropped; a node is online until its heartbeats
stop, by the central's wall clock; node rows outlive the central, messages do not. The site's end is
the real `FleetSite` but for what goes over the wire.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from simulation.kernel import WALL_S, Machine, World, running
from simulation.network import Network

from pww.config.schema import Transport
from pww.federation import fleet as pww_fleet
from pww.federation import rounds as pww_rounds
from pww.federation.fleet import FleetSite, Instruction
from pww.federation.fleet_client import NotAdmitted, RunOver
from pww.federation.superlink import canonical_key as canonical_key_of
from pww.transport.retry import TryAgain

PATIENCE = 3
TICK_S = 1.0
canonical_key = cache(canonical_key_of)


@cache
def public_pem(number: int) -> str:
    """A P-384 key that follows from its number; making one takes longer than a whole phase."""
    made = ec.derive_private_key(7 + number, ec.SECP384R1()).public_key()
    return made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@dataclass
class NodeRow:
    """A node of flwr's database."""

    node_id: int
    name: str
    online: bool = False
    until_wall_s: float = 0.0
    last_activated_at: str = ""


@dataclass
class Sent:
    """An instruction and what became of it."""

    node_id: int
    content: Any
    taken: bool = False
    reply: Any = None


@dataclass
class Database:
    """`superlink.db`."""

    nodes: dict[bytes, NodeRow] = field(default_factory=dict)
    activations: int = 0


class Link:
    """`EmbeddedSuperLink` of one life of the central."""

    def __init__(self, world: World, machine: Machine, database: Database) -> None:
        self._world, self._machine, self._db = world, machine, database
        self.sent: dict[str, Sent] = {}
        self.current: dict[str, str] = {}  # by replica: the incarnation that may speak
        self.serves = False
        self._life, self._number = machine.life, 0
        self.grid = self

    # -- what the loop asks for

    def renew(self) -> bool:
        return False

    def joined(self, member: Any) -> None:
        if not member.node_key:
            return
        key = canonical_key(member.node_key)
        self.current[member.replica] = member.incarnation
        if key in self._db.nodes:
            if self.serves:
                self._db.nodes[key].online = False
            return
        for old in [k for k, row in self._db.nodes.items() if row.name == member.replica]:
            del self._db.nodes[old]
        node_id = 1000 + int.from_bytes(key[60:66], "big")
        self._db.nodes[key] = NodeRow(node_id, member.replica)

    def sweep(self) -> None:
        """No key is revoked here."""

    def left(self, member: Any, *, for_good: bool = False) -> None:
        """A silent member keeps its key."""

    def nodes(self) -> dict[bytes, NodeRow]:
        return self._db.nodes

    # -- the grid

    def _wall(self) -> float:
        return WALL_S + self._machine.wall_offset_s + self._world.now

    def get_nodes(self) -> list[NodeRow]:
        wall_s = self._wall()
        for row in self._db.nodes.values():
            row.online = row.online and row.until_wall_s > wall_s
        return [row for row in self._db.nodes.values() if row.online]

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float = 0.0
    ) -> Any:
        return SimpleNamespace(content=content, node_id=dst_node_id)

    def pin(self, arrays: Any) -> None:
        """Bytes are not counted here."""

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            self._number += 1
            ids.append(f"{self._life}-{self._number}")
            self.sent[ids[-1]] = Sent(message.node_id, message.content)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        found = []
        for one in list(message_ids):
            sent = self.sent.get(one)
            if sent is None or sent.reply is None:
                continue
            metadata = SimpleNamespace(reply_to_message_id=one)
            found.append(
                SimpleNamespace(metadata=metadata, content=sent.reply, has_error=lambda: False)
            )
            self.cancel([one])
        return found

    def cancel(self, message_ids: Iterable[str]) -> None:
        for one in message_ids:
            self.sent.pop(one, None)

    # -- the Fleet routes; a request is one call

    def serve(self, name: str, request: Any, *, who: tuple[str, str]) -> Any:
        """The answer to one request of a node; a fault is returned, not raised."""
        replica, incarnation = who
        if self.current.get(replica) != incarnation:
            return NotAdmitted("HTTP 401")
        match name:
            case "ActivateNode":
                row = self._db.nodes.get(canonical_key(request.public_key.decode()))
                if row is None:
                    return NotAdmitted("HTTP 401")
                self.get_nodes()
                if row.online:
                    return NotAdmitted("HTTP 412")
                self._up(row, request.heartbeat_interval)
                return SimpleNamespace(node_id=row.node_id)
            case "DeactivateNode":
                row = self._row(request.node_id)
                if row is None or not row.online:
                    return NotAdmitted("HTTP 412")
                row.online = False
                return None
            case "SendNodeHeartbeat":
                row = self._row(request.node.node_id)
                if row is None:
                    return NotAdmitted("HTTP 401")
                self._up(row, request.heartbeat_interval)
                return None
            case "PullMessages":
                row = self._row(request.node.node_id)
                if row is None:
                    return NotAdmitted("HTTP 401")
                for one, sent in self.sent.items():
                    if sent.node_id == row.node_id and not sent.taken:
                        sent.taken = True
                        return SimpleNamespace(messages_list=[one], content=sent.content)
                return SimpleNamespace(messages_list=[])
            case "PushMessages":
                number, content = request
                if not number.startswith(f"{self._life}-"):
                    return RunOver("HTTP 403")
                sent = self.sent.get(number)
                if sent is None or sent.reply is not None:
                    return False
                sent.reply = content
                return True
        raise AssertionError(name)

    def _row(self, node_id: int) -> NodeRow | None:
        self.get_nodes()
        return next((row for row in self._db.nodes.values() if row.node_id == node_id), None)

    def _up(self, row: NodeRow, interval_s: float) -> None:
        if not row.online:
            self._db.activations += 1
            row.last_activated_at = str(self._db.activations)
        row.online, row.until_wall_s = True, self._wall() + PATIENCE * interval_s


class _Client:
    """`FleetClient` over the simulated network."""

    def __init__(
        self, network: Network, to: Machine, link: Callable[[], Link], *, timeout_s: float,
        who: tuple[str, str],
    ) -> None:  # fmt: skip
        self._network, self._to, self._link = network, to, link
        self._timeout_s, self._who = timeout_s, who

    def call(self, name: str, request: Any) -> Any:
        answer = self._network.call(
            self._to,
            lambda: self._link().serve(name, request, who=self._who),
            timeout_s=self._timeout_s,
            # a doubled pull would swallow an instruction: no client repeats a POST by itself
            doubles=name in ("SendNodeHeartbeat", "PushMessages"),
        )
        if isinstance(answer, NotAdmitted | RunOver):
            raise answer
        return answer

    def close(self) -> None:
        """Nothing is open."""


class Fleet(FleetSite):
    """The real node but for its bytes: contents travel as objects."""

    def __init__(
        self, network: Network, to: Machine, link: Callable[[], Link], transport: Transport, *,
        clock: Any, stop: Any, key: int, heartbeat_s: float, who: tuple[str, str],
    ) -> None:  # fmt: skip
        machine = running()
        assert machine is not None
        signer: Any = SimpleNamespace(public_pem=public_pem(key).encode(), offset_s=0.0)
        real = pww_fleet.FleetClient
        pww_fleet.FleetClient = lambda *_, timeout_s, **__: _Client(
            network, to, link, timeout_s=timeout_s, who=who
        )
        try:
            super().__init__(
                "central:1", transport, signer=signer, clock=clock, stop=stop,
                random=machine.world, heartbeat_s=heartbeat_s,
            )  # fmt: skip
        finally:
            pww_fleet.FleetClient = real

    def _download(self, answer: Any) -> Instruction:
        return Instruction(answer.messages_list[0], answer.content)

    def reply(self, to: Instruction, content: Any) -> bool:
        """As the real one: in doubt until the central has said whether it takes it."""
        self._in_doubt = True
        for attempt in range(3):
            try:
                taken = self._client.call("PushMessages", (to.metadata, content))
            except RunOver:
                self._in_doubt = False
                return False
            except TryAgain:
                self._clock.wait(self._stop, 1.0)
                continue
            self._in_doubt = False
            return bool(taken) or attempt > 0
        return False


@contextmanager
def simulated() -> Iterator[None]:
    """In the block the loop turns once a second, and remembers keys: a PEM takes long to read."""
    real = pww_rounds.canonical_key, pww_rounds.TICK_S
    pww_rounds.canonical_key, pww_rounds.TICK_S = canonical_key, TICK_S
    try:
        yield
    finally:
        pww_rounds.canonical_key, pww_rounds.TICK_S = real
