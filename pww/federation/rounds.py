"""The server loop over Flower's grid: standing invitations down, deltas and theta(0) up.

Each live member holds one instruction. The site that answers it gets the next one as soon as its
delta has a verdict or the round has moved on; closing a round cancels nobody's instruction, since
flwr drops the reply to a cancelled one without an error. A node that came back from an offline time
or activated itself again holds nothing any more, and is invited anew. What a member sends is his
only if he holds the instruction that it answers. Nobody waits for a payload that is being fetched:
its message is handed in again each turn until it is there.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from sqlalchemy.exc import SQLAlchemyError

from pww.clock import Clock
from pww.errors import NotYet, PwwError
from pww.federation.inbox import Inbox, Node
from pww.federation.records import PAYLOAD, REPLY, pack, pack_payload, payload_of, unpack
from pww.federation.superlink import EmbeddedSuperLink, canonical_key
from pww.wire import Invitation, Offer, Seed, Verdict

log = logging.getLogger(__name__)
TICK_S = 0.2
PACKED = 2
PAUSE_S = 10.0
"""A member whose reply was unusable is not asked again sooner: it would send the same bytes."""


@dataclass(slots=True)
class _Member:
    """One incarnation as the loop sees it."""

    who: Node
    node_id: int
    activated: str  # when flwr saw it come up, at the time of the instruction
    instruction: str = ""  # the message id that it holds; "" for none
    delivered: str = ""  # delta id that waits for its verdict
    delivered_round: int = 0  # the round that was current then
    verdict: Verdict | None = None  # given on receipt; told with the next invitation
    not_before_s: float = 0.0
    invited: int = -1  # round of the theta that its instruction is about
    holds: int = -1  # newest round whose theta it has for certain; -1: not known
    coming: Offer | Seed | None = None  # its reply, whose payload is being fetched


class Rounds(Strategy):  # type: ignore[misc]
    """A flwr strategy with a loop of its own.

    flwr's `start` counts its rounds from 1, blocks in each and waits for the slowest.
    """

    def __init__(
        self,
        link: EmbeddedSuperLink,
        inbox: Inbox,
        *,
        folder: Path,
        clock: Clock,
        limit_mb: int,
        seed_ttl_s: float,
    ) -> None:
        """`folder` holds a payload while the inbox looks at it; it is emptied now.

        A seed claim passes to another member after `seed_ttl_s`.
        """
        self._link, self._inbox, self._folder, self._clock = link, inbox, folder, clock
        self._limit_mb, self._seed_ttl_s = limit_mb, seed_ttl_s
        self._members: dict[str, _Member] = {}  # by incarnation
        self._barred: set[str] = set()  # incarnations whose fault was logged
        self._round = 0  # of the newest invitation
        self._claim, self._claim_until_s = "", 0.0
        self._packed: dict[str, ArrayRecord] = {}  # by digest: the last two files that were sent
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.payload"):
            left.unlink()

    def run(self, stop: threading.Event) -> None:
        """Serves until the inbox is finished or a stop is asked for.

        Raises:
            PwwError: what `Inbox.tick` raises; a member's fault never ends the loop.
        """
        self.summary()
        while not stop.is_set() and not self._inbox.finished():
            try:
                self.step()
            except SQLAlchemyError as fault:
                # Another thread held the database for too long; what is half done heals itself.
                log.warning("Flower's database: %s; going on", fault)
            self._clock.wait(stop, TICK_S)

    def step(self) -> None:
        """One turn: replies in, time passes, invitations out."""
        grid = self._link.grid
        if self._link.renew():
            self._members.clear()
        self._link.sweep()
        online = {node.node_id: node for node in grid.get_nodes()}
        held = [m.instruction for m in self._members.values() if m.node_id in online]
        replies = grid.pull_messages(i for i in held if i)
        if replies:
            self.aggregate_train(self._round, replies)
        for member in self._members.values():
            if member.coming is not None:
                self._use(member, member.coming, None)
        self._inbox.tick()
        self._reconcile(online)
        seeding = self._inbox.needs_seed()
        for member in self._due(online, seeding=seeding):
            self._invite(member, "seed" if seeding else "phase")

    # ------------------------------------------------------------------------- Strategy hooks

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The invitation `config["json"]` for incarnation `config["to"]`, with theta beside it."""
        invitation = Invitation.model_validate_json(str(config["json"]))
        content = pack(invitation, arrays if PAYLOAD in arrays else None)
        node_id = self._members[str(config["to"])].node_id
        return [grid.create_message(content, "train", node_id, str(server_round))]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[None, MetricRecord]:
        """Hands each usable reply to the inbox, which merges when a round is due."""
        used = refused = 0
        for message in replies:
            if self._receive(message):
                used += 1
            else:
                refused += 1
        return None, MetricRecord({"used": used, "refused": refused})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """None: sites evaluate theta when they pull it, and tell with their delta."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing was asked for."""

    def summary(self) -> None:
        """One line for people."""
        log.info("invitations every %g s, payloads up to %d MB", TICK_S, self._limit_mb)

    # -------------------------------------------------------------------------------- members

    def _reconcile(self, online: dict[int, Any]) -> None:
        """Follows the inbox's members: frees what the gone ones held, finds the new ones' nodes."""
        live = {node.incarnation: node for node in self._inbox.live() if node.node_key}
        for incarnation in [i for i in self._members if i not in live]:
            self._free(self._members.pop(incarnation))
        self._barred &= live.keys()
        nodes = self._link.nodes() if live else {}
        for incarnation, who in live.items():
            node = self._node(who, nodes)
            if node is None:
                continue
            member = self._members.get(incarnation)
            if member is None or member.node_id != node.node_id:
                self._members[incarnation] = _Member(who, node.node_id, "")
            elif node.node_id in online and node.last_activated_at != member.activated:
                self._free(member)  # it came up anew: whatever it held is gone

    def _node(self, who: Node, nodes: dict[bytes, Any]) -> Any | None:
        """The member's node, None while it has none; one that cannot have one is named once."""
        try:
            node = nodes.get(canonical_key(who.node_key))
            if node is None:
                self._link.joined(who)  # a lost superlink.db, for example
        except PwwError as fault:
            if who.incarnation not in self._barred:
                self._barred.add(who.incarnation)
                log.error("%s cannot take part: %s", who.replica, fault)
            return None
        return node

    def _free(self, member: _Member) -> None:
        """Takes a member's instruction back and frees its bytes."""
        if member.instruction:
            self._link.grid.cancel([member.instruction])
            member.instruction = ""

    # ---------------------------------------------------------------------------- invitations

    def _due(self, online: dict[int, Any], *, seeding: bool) -> list[_Member]:
        """Members that may get an instruction now."""
        now_s = self._clock.monotonic()
        idle = [  # in the order in which they came: the first one seeds the run
            m
            for m in self._members.values()
            if not m.instruction and m.coming is None
            if m.node_id in online and now_s >= m.not_before_s
        ]
        if not seeding:
            return idle
        if any(isinstance(m.coming, Seed) for m in self._members.values()):
            return []  # theta(0) is being fetched
        if self._claim in self._members and now_s < self._claim_until_s:
            return [m for m in idle if m.who.incarnation == self._claim]
        # Somebody else's turn, if there is somebody else.
        others = [m for m in idle if m.who.incarnation != self._claim] or idle
        if others:
            self._claim = others[0].who.incarnation
            self._claim_until_s = now_s + self._seed_ttl_s
            log.info("%s is asked for theta(0)", others[0].who.replica)
        return others[:1]

    def _invite(self, member: _Member, kind: Literal["seed", "phase"]) -> None:
        """Sends the standing instruction, unless the member still waits for a verdict."""
        try:
            invitation, path = self._inbox.invitation(member.who.replica, kind, holds=member.holds)
        except NotYet:
            return  # the next turn asks again
        known = {verdict.delta for verdict in invitation.verdicts}
        told = member.verdict
        if told is not None and told.delta not in known:
            verdicts = (*invitation.verdicts, told)
            invitation = invitation.model_copy(update={"verdicts": verdicts})
            known.add(told.delta)
        moved_on = invitation.round != member.delivered_round
        if member.delivered and member.delivered not in known and not moved_on:
            return
        grid = self._link.grid
        try:
            arrays = self._arrays(invitation, path)
        except PwwError as fault:
            log.error("%s cannot be invited: %s", member.who.replica, fault)
            member.not_before_s = self._clock.monotonic() + PAUSE_S
            return
        config = ConfigRecord({"json": invitation.model_dump_json(), "to": member.who.incarnation})
        # Read as late as possible: if the node comes up anew after this, it is invited again.
        now_online = {node.node_id: node for node in grid.get_nodes()}
        if member.node_id not in now_online:
            return
        member.activated = now_online[member.node_id].last_activated_at
        messages = self.configure_train(invitation.round, arrays, config, grid)
        member.instruction = grid.push_messages(messages)[0]
        member.invited = invitation.round if kind == "phase" else -1
        self._round = invitation.round
        if member.instruction:
            member.delivered, member.verdict = "", None

    def _arrays(self, invitation: Invitation, path: Path | None) -> ArrayRecord:
        """The file beside an invitation as a record; packed and stored once for all members."""
        info = payload_of(invitation)
        if info is None or path is None:
            return ArrayRecord()
        arrays = self._packed.pop(info.digest, None)
        if arrays is None:
            arrays = pack_payload(path, info, limit_mb=self._limit_mb)
        self._packed[info.digest] = arrays
        while len(self._packed) > PACKED:
            del self._packed[next(iter(self._packed))]
        self._link.grid.pin(arrays)
        return arrays

    # -------------------------------------------------------------------------------- replies

    def _receive(self, message: Message) -> bool:
        """Takes one reply; whatever is wrong with it is logged with the replica's name."""
        answered = message.metadata.reply_to_message_id
        member = next((m for m in self._members.values() if m.instruction == answered), None)
        if member is None:
            return False
        member.instruction = ""
        if message.has_error():
            if message.error.code == ErrorCode.NODE_UNAVAILABLE:
                log.info("%s is offline for Flower; it is invited anew later", member.who.replica)
            else:
                log.error("no reply of %s: %s", member.who.replica, message.error.reason)
                member.not_before_s = self._clock.monotonic() + PAUSE_S
            return False
        try:
            reply, data = unpack(message.content, REPLY, limit_mb=self._limit_mb)
            sender = (reply.replica, reply.incarnation)
            if sender != (member.who.replica, member.who.incarnation):
                log.error(
                    "%s sent a message in the name of %s (incarnation %s): refused",
                    member.who.replica, reply.replica, reply.incarnation,
                )  # fmt: skip
                member.not_before_s = self._clock.monotonic() + PAUSE_S
                return False
        except PwwError as fault:
            return self._useless(member, fault)
        member.holds = max(member.holds, member.invited)
        return self._use(member, reply, data)

    def _use(self, member: _Member, reply: Offer | Seed, data: bytes | None) -> bool:
        """Hands a reply in, again if its payload had to be fetched."""
        member.coming = None
        try:
            self._hand_over(member, reply, data)
        except NotYet:
            member.coming = reply
        except (PwwError, OSError) as fault:
            return self._useless(member, fault)
        return True

    def _useless(self, member: _Member, fault: Exception) -> bool:
        log.error("a reply of %s cannot be used: %s", member.who.replica, fault)
        member.not_before_s = self._clock.monotonic() + PAUSE_S
        return False

    def _hand_over(self, member: _Member, reply: Offer | Seed, data: bytes | None) -> None:
        path = self._folder / f"{reply.incarnation}.payload"
        target = None if data is None else path
        try:
            if data is not None:
                path.write_bytes(data)
            match reply:
                case Seed():
                    self._inbox.accept_seed(reply, target)
                case Offer():
                    member.verdict = self._inbox.accept_offer(reply, target)
                    member.delivered = reply.delta
                    member.delivered_round = self._inbox.round
        finally:
            path.unlink(missing_ok=True)
