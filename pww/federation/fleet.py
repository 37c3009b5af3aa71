"""What `flower-supernode` does, as a library inside rank 0: requests out, nothing listens or exits.

flwr's own connection manager interrupts its process on a 401 and lets its heartbeat thread die on a
500; this one turns every fault into a retry or an exception of ours. An instruction is handed out
once: when an answer that may have carried one is lost, the node deactivates and activates itself,
which tells the central that it holds none.
"""

import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_protobuf_utils as wiring
from flwr.supercore.inflatable import inflatable_utils as transfer

from pww.clock import Clock
from pww.config.schema import Transport
from pww.errors import CentralError, PayloadError, Unreachable
from pww.federation.fleet_client import FleetClient, NotAdmitted, RunOver
from pww.federation.parts import Parts
from pww.federation.records import MB, SLACK_CHUNKS
from pww.federation.signing import Signer
from pww.transport.retry import Retry, TryAgain, Uniform

log = logging.getLogger(__name__)
CHUNK_BYTES = 5_242_880
UPLOAD_TRIES = 5
PULL_TRIES, PULL_FIRST_S = 5, 0.2
"""flwr's own numbers would wait two hours for bytes that are gone."""
TRANSFER_S = 120.0


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction in hand: Flower's addressing, and our content."""

    metadata: Metadata
    content: RecordDict


class FleetSite:
    """One node of the federation. Not thread-safe."""

    def __init__(
        self,
        address: str,
        transport: Transport,
        *,
        signer: Signer,
        clock: Clock,
        stop: threading.Event,
        random: Uniform,
        heartbeat_s: float = 15.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`address` is `host:port` of the aggregator; `signer` has the key. Nothing is sent yet."""
        self._clock, self._stop = clock, stop
        self._limit_mb, self._heartbeat_s = transport.limit_mb, heartbeat_s
        self._signer = signer
        self._retry = Retry(
            f"the central's aggregator at {address}",
            first_s=transport.retry_first_s,
            max_s=transport.retry_max_s,
            clock=clock,
            stop=stop,
            random=random,
        )
        self._client = FleetClient(address, signer, timeout_s=transport.timeout_s, tls=tls)
        # Its own connection: a bulk transfer must not delay heartbeats.
        self._beat_client = FleetClient(
            address, signer, timeout_s=min(transport.timeout_s, heartbeat_s), tls=tls
        )
        self._node: Any = None  # once activated, for good: a key has one node id
        self._active = False
        self._in_doubt = False  # an instruction may have been lost on its way here
        self._closed = threading.Event()
        self._beat = threading.Thread(target=self._beats, daemon=True, name="flower-heartbeat")

    @property
    def public_pem(self) -> str:
        """The public key of this node, for `Register.node_key`."""
        return self._signer.public_pem.decode()

    @property
    def num_retries(self) -> int:
        """Requests so far that were repeats."""
        return self._retry.num_retries

    def receive(self) -> Instruction | None:
        """The next instruction, or None when there is none now. Repeats through outages.

        Raises:
            NotAdmitted: the central does not know the key.
            CentralError: what answers does not prove to be the central.
            PayloadError: an instruction over the limit, or one that cannot be unpacked; it is gone.
            Stopped: the stop was asked for while the central did not answer.
        """
        return self._retry.run(self._receive, what="asking for instructions")

    def reply(self, to: Instruction, content: RecordDict) -> bool:
        """Sends the answer to an instruction; False if the central no longer takes one for it.

        Raises:
            NotAdmitted: the central does not know the key.
            Stopped: the stop was asked for while the central did not answer.
        """
        message = _reply(to, content)
        self._in_doubt = True  # if it stays unclear, the central may think that we still hold it
        with objects.no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            for attempt in range(UPLOAD_TRIES):
                if attempt:
                    self._retry.count()
                try:
                    taken = self._upload(message)
                except RunOver:
                    self._in_doubt = False
                    return False
                except Unreachable as fault:
                    log.warning("%s", fault)
                    return False
                except transfer.ObjectPushError as fault:
                    # It may have arrived and only the answer got lost: ask what is missing now.
                    log.debug("upload: %s", fault)
                    continue
                self._in_doubt = False
                return taken or attempt > 0
        log.warning("a reply could not be uploaded in %d tries; it is sent again", UPLOAD_TRIES)
        return False

    def ask_again(self) -> None:
        """Gives up the instruction in hand: the central will send one of the newest round."""
        self._in_doubt = True

    def close(self) -> None:
        """Ends the heartbeats; never raises. The lease protocol is what says goodbye.

        The node is not deactivated: flwr would drop a reply that has arrived but was not looked at.
        """
        self._closed.set()
        if self._beat.is_alive():
            self._beat.join(1.0)
        self._client.close()
        self._beat_client.close()

    # ---------------------------------------------------------------------------- one request

    def _repeat(self, name: str) -> Callable[[Any], Any]:
        """One call, repeated through outages; after a long one it is better to start over."""
        return lambda request: self._retry.run(
            lambda: self._client.call(name, request), what="a transfer", deadline_s=TRANSFER_S
        )

    def _counted(self, pull: Callable[[str], bytes], parts: Parts) -> Callable[[str], bytes]:
        """flwr asks again for an object that is not there yet, and tells nobody."""
        asked: set[str] = set()

        def again(object_id: str) -> bytes:
            if object_id in asked:
                self._retry.count()
            asked.add(object_id)
            content = pull(object_id)
            parts.add(len(content))
            return content

        return again

    def _receive(self) -> Instruction | None:
        try:
            return self._ask()
        except RunOver as fault:  # not Flower's: it knows no runs in these calls
            raise TryAgain(str(fault)) from fault

    def _ask(self) -> Instruction | None:
        if self._in_doubt or not self._active:
            self._activate()
        self._in_doubt = True  # until the answer is here
        try:
            try:
                answer = self._pull()
            except NotAdmitted:  # its row is new (a lost database): there is another node id
                self._activate()
                self._retry.count()
                answer = self._pull()
            pulled = self._download(answer) if answer.messages_list else None
        except TryAgain as fault:
            self._in_doubt = not isinstance(fault.__cause__, httpx.ConnectError)
            raise
        self._in_doubt = False
        return pulled

    def _pull(self) -> Any:
        return self._client.call("PullMessages", PullMessagesRequest(node=self._node))

    def _activate(self) -> None:
        """Goes online anew: an instruction that was sent to this node before counts as lost."""
        if self._node is not None:  # flwr refuses to activate a node that is online
            request = DeactivateNodeRequest(node_id=self._node.node_id)
            with suppress(NotAdmitted):
                self._client.call("DeactivateNode", request)
        self._active = False
        answer = self._client.call(
            "ActivateNode",
            ActivateNodeRequest(
                public_key=self._signer.public_pem, heartbeat_interval=self._heartbeat_s
            ),
        )
        self._node, self._active, self._in_doubt = Node(node_id=answer.node_id), True, False
        if not self._beat.is_alive():
            self._beat.start()

    def _download(self, answer: Any) -> Instruction:
        """All objects of the pulled instruction, put together."""
        tree, run_id = answer.message_object_trees[0], answer.messages_list[0].metadata.run_id
        num_objects = sum(1 for _ in objects.iterate_object_tree(tree))
        if num_objects > self._limit_mb * MB // CHUNK_BYTES + SLACK_CHUNKS:
            raise PayloadError(
                f"an instruction of {num_objects} objects is larger than transport.limit_mb="
                f"{self._limit_mb} allows: set the same limit at the central and at every site"
            )
        parts = Parts("receiving an instruction", total=num_objects, clock=self._clock)
        try:
            message = transfer.pull_and_inflate_object_from_tree(
                tree,
                self._counted(
                    wiring.make_pull_object_fn_protobuf(
                        self._repeat("PullObject"), self._node, run_id
                    ),
                    parts,
                ),
                wiring.make_confirm_message_received_fn_protobuf(
                    self._repeat("ConfirmMessageReceived"), self._node, run_id
                ),
                return_type=Message,
                max_time=TRANSFER_S,
                max_tries_per_object=PULL_TRIES,
                initial_backoff=PULL_FIRST_S,
            )
        except (RunOver, Unreachable, transfer.ObjectPullError) as fault:
            raise TryAgain(f"the instruction could not be read: {fault}") from fault
        except (ValueError, KeyError, TypeError) as fault:
            raise PayloadError(f"an instruction cannot be unpacked: {fault}") from fault
        if not message.has_content():
            raise PayloadError("an instruction without content")
        message.metadata.__dict__["_message_id"] = tree.object_id
        return Instruction(message.metadata, message.content)

    def _upload(self, message: Message) -> bool:
        """Header first, then the objects that the central lacks; False if it lacks none."""
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[objects.get_object_tree(message)],
        )
        answer = self._repeat("PushMessages")(request)
        if not answer.objects_to_push:
            return False
        wanted = set(answer.objects_to_push)
        parts = Parts("sending an answer", total=len(wanted), clock=self._clock)
        push = wiring.make_push_object_fn_protobuf(
            self._repeat("PushObject"), self._node, message.metadata.run_id, answer.session_id
        )

        def told(object_id: str, content: bytes) -> None:
            push(object_id, content)
            parts.add(len(content))

        transfer.push_objects(
            objects.get_all_nested_objects(message), told, object_ids_to_push=wanted
        )
        return True

    def _beats(self) -> None:
        """Keeps the node online. Outages are told by the calls that need the central."""
        while not self._closed.wait(self._heartbeat_s / 3):
            node = self._node
            if node is None or self._stop.is_set():
                continue
            request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=self._heartbeat_s)
            try:
                self._beat_client.call("SendNodeHeartbeat", request)
            except (TryAgain, NotAdmitted, RunOver, CentralError) as fault:
                log.debug("Flower heartbeat: %r", fault)


def _reply(to: Instruction, content: RecordDict) -> Message:
    """The reply to an instruction, with its times: this machine's clock does not matter."""
    told = to.metadata
    metadata = Metadata(
        run_id=told.run_id,
        message_id="",
        src_node_id=told.dst_node_id,
        dst_node_id=told.src_node_id,
        reply_to_message_id=told.message_id,
        group_id=told.group_id,
        created_at=told.created_at,
        ttl=told.ttl,
        message_type=told.message_type,
    )
    metadata.delivered_at = ""
    return make_message(metadata=metadata, content=content)
