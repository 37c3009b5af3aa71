"""Flower's SuperLink inside this process: node keys and instructions, no executor, no Control API.

Node and run rows live in `superlink.db`, so a restart knows the nodes; payload bytes live in RAM,
since the ledger and the sites' outboxes are what a restart goes on from. Every life of the central
is one flwr run: a reply to an instruction of an earlier life is refused by flwr, and the site
answers the new invitation instead.

With a `Guard`, a replica's key is stable and outlives its processes, so it is the token of a call
that says which of them speaks: only the one that registered last does.
"""

import binascii
import logging
import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SubStatus
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    NOOP_FEDERATION_ID,
    NodeStatus,
    TaskType,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.main import create_app
from sqlalchemy.exc import SQLAlchemyError

from pww.errors import Refused, StateError
from pww.federation.gate import Gate as Gate
from pww.federation.grid import SLACK_BYTES
from pww.federation.grid import LinkStateGrid as LinkStateGrid
from pww.federation.inbox import Node
from pww.federation.records import MB

log = logging.getLogger(__name__)
RUN_BEAT_S = 15.0
"""flwr ends a run for good that is silent for 60 s."""


KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()


class Caller(Protocol):
    """Who a call's token belongs to."""

    @property
    def replica(self) -> str:
        """`site/replica`."""

    @property
    def incarnation(self) -> str:
        """The process life that opened the session."""


class Guard(Protocol):
    """Who may take part at all, where credentials are on. Thread-safe."""

    def keys(self) -> Mapping[str, str]:
        """Replicas by public key (PEM); another object as soon as something has changed."""

    def check_node(self, authorization: str, path: str, pem: str, *, peer: str) -> Caller:
        """The caller, if the token is valid and its session was opened by the key `pem`.

        Raises:
            Refused: neither.
        """


def _make(path: Path) -> None:
    """The database with its tables, whole or not there at all: flwr makes table after table, and
    cannot go on where a kill left off.
    """
    part = path.with_name(f"{path.name}.part")
    for old in path.parent.glob(f"{part.name}*"):  # a killed start's, with SQLite's own beside it
        old.unlink()
    made: Any = LinkStateFactory(str(part), NoOpFederationManager(), ObjectStoreFactory()).state()
    made._engine.dispose()  # the last connection: what was logged beside the file is in it
    part.rename(path)


class EmbeddedSuperLink:
    """The SuperLink: its ASGI `app`, its `grid` (one thread), and the members' node keys."""

    def __init__(self, folder: Path, *, limit_mb: int, guard: Guard | None = None) -> None:
        """Opens or makes `folder/superlink.db`. Without a guard every member's key is admitted.

        Raises:
            StateError: the database cannot be opened.
        """
        path = folder / "superlink.db"
        factory = LinkStateFactory(str(path), NoOpFederationManager(), ObjectStoreFactory())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                _make(path)
            self.state: Any = factory.state()
        except (OSError, SQLAlchemyError) as fault:
            why = getattr(fault, "orig", None) or fault
            raise StateError(
                f"cannot open {path}: {why}. It holds nothing that the ledger does not know: "
                "if it is damaged, delete it and start again"
            ) from fault
        app = create_app()
        app.state.linkstate_factory = app.state.runtime_state_factory = factory
        app.state.enable_supernode_auth = True  # nobody registers a key over the network
        self._guard = guard
        self.app = Gate(app) if guard is None else Gate(app, judge=self._judge)
        self.grid = LinkStateGrid(self.state, max_reply_bytes=limit_mb * MB + SLACK_BYTES)
        self._task = 0
        self._lost = threading.Event()
        self._closing = threading.Event()
        self._keys = threading.Lock()
        self._current: dict[str, str] = {}  # replica -> the incarnation that may speak for it
        self._swept: Mapping[str, str] = {}

    # ------------------------------------------------------------------------------ members

    def joined(self, member: Node) -> None:
        """Admits the member's node key; repeating it changes nothing.

        An older key of the same replica is deleted: its incarnation was replaced. flwr never admits
        a deleted key again, which is why silence alone (`left`) deletes nothing. Who registers, a
        new incarnation or the same one again, finds the node offline and activates it anew:
        whatever it held is void, and flwr would refuse a process that never heard of its own
        activation (that answer got lost) for as long as the node counts as online.

        Raises:
            Refused: the key is no PEM EC P-384 public key, is not the replica's, or was deleted.
        """
        if not member.node_key:
            return
        key = canonical_key(member.node_key)
        if self._guard is not None and self._guard.keys().get(key.decode()) != member.replica:
            raise Refused(
                f"the node key of {member.replica} is not (or no longer) allowed at the central: "
                "start the site with the bundle that has its key",
                code="unauthorised",
            )
        with self._keys:
            self._current[member.replica] = member.incarnation  # first: the old one is out now
            for row in self.state.get_node_info():
                if row.public_key == key:
                    if row.status == NodeStatus.UNREGISTERED:
                        raise Refused(
                            f"the node key of {member.replica} was withdrawn before, and "
                            "a withdrawn key never returns: start the site's process anew",
                            code="unknown_incarnation",
                        )
                    if self._task:  # else it is a restart
                        self.state.deactivate_node(row.node_id)
                    return
            self._delete(member.replica)
            self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0, name=member.replica)

    def left(self, member: Node, *, for_good: bool = False) -> None:
        """Takes note that a member is gone. A silent one keeps its key and may come back with it.

        Nothing is sent to a member that is not live, so silence needs no action; `for_good` (it
        said goodbye, or is banned) withdraws the key.
        """
        if for_good and member.node_key:
            with self._keys:
                self._delete(member.replica, only=canonical_key(member.node_key))

    def sweep(self) -> None:
        """Deletes the nodes of keys that were revoked; costs nothing while none is."""
        if self._guard is None:
            return
        try:
            keys = self._guard.keys()
        except StateError:
            return  # nothing is let in then, and the door says why
        if keys is self._swept:
            return
        with self._keys:
            for row in self.state.get_node_info():
                allowed = row.public_key.decode() in keys
                if not allowed and row.status != NodeStatus.UNREGISTERED:
                    log.warning("%s takes part no more: its key is not allowed", row.name)
                    self.state.delete_node(NOOP_FLWR_AID, row.node_id)
        self._swept = keys

    def _judge(self, headers: Mapping[bytes, bytes], path: str, peer: str) -> int:
        """See `gate.Judge`: the token, its key, and the process life that may speak."""
        assert self._guard is not None
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        try:
            pem = b64decode(headers.get(KEY_HEADER, b""), validate=True).decode("ascii")
            who = self._guard.check_node(authorization, path, pem, peer=peer)
        except (binascii.Error, UnicodeDecodeError, Refused):
            return 401
        except StateError:
            return 503
        return 0 if self._current.get(who.replica) == who.incarnation else 401

    def nodes(self) -> dict[bytes, Any]:
        """Every admitted node by its key, online or not."""
        rows = self.state.get_node_info()
        return {row.public_key: row for row in rows if row.status != NodeStatus.UNREGISTERED}

    def _delete(self, replica: str, *, only: bytes = b"") -> None:
        for row in self.state.get_node_info():
            if row.name != replica or row.status == NodeStatus.UNREGISTERED:
                continue
            if not only or row.public_key == only:
                self.state.delete_node(NOOP_FLWR_AID, row.node_id)

    # ---------------------------------------------------------------------------------- run

    @contextmanager
    def run(self) -> Iterator[None]:
        """One life of the central: a flwr run with its heartbeat."""
        self._begin()
        beat = threading.Thread(target=self._beat, daemon=True, name="flower-run-heartbeat")
        beat.start()
        try:
            yield
        finally:
            self._closing.set()
            beat.join(RUN_BEAT_S)
            self.state.finish_task(self._task, SubStatus.COMPLETED, "")
            self.state.cleanup_run(self.grid.run.run_id)

    def close(self) -> None:
        """Closes the database; call it when nothing serves `app` any more."""
        self.state._engine.dispose()

    def renew(self) -> bool:
        """Starts another flwr run if this one was ended (a suspended machine); True if it did."""
        if not self._lost.is_set():
            return False
        log.warning("Flower ended its run for want of a heartbeat; starting another one")
        self._begin()
        self._lost.clear()
        return True

    def _begin(self) -> None:
        state = self.state
        for old in state.get_run_info():  # of earlier lives: their messages are void
            state.stop_run(old.run_id)
            state.cleanup_run(old.run_id)
        run_id = state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        run = state.get_run_info(run_ids=[run_id])[0]
        if not (state.claim_task(run.primary_task_id) and state.activate_task(run.primary_task_id)):
            raise StateError("Flower did not start its run: delete superlink.db and start again")
        self._task = run.primary_task_id
        self.grid.set_run(run)

    def _beat(self) -> None:
        while not self._closing.wait(RUN_BEAT_S):
            try:
                if not self.state.acknowledge_task_heartbeat(self._task):
                    self._lost.set()
            except SQLAlchemyError as fault:
                log.warning("Flower's run heartbeat: %s; it is repeated", fault)


def canonical_key(pem: str) -> bytes:
    """The one PEM text that flwr compares keys by.

    Raises:
        Refused: not a PEM EC public key on the curve P-384.
    """
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as fault:
        raise Refused(
            f"node_key is no PEM public key ({fault}): send the one of this process",
            code="bad_request",
        ) from fault
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise Refused("node_key is not an EC key on the curve P-384", code="bad_request")
    return bytes(public_key_to_bytes(key))
