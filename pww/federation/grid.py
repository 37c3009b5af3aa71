"""Flower's Grid straight on the SuperLink's state: no loopback hop, and nothing ever blocks.

Differs from flwr's own HttpGrid where that one would hurt a run of weeks: a pull never waits for a
half-uploaded reply (HttpGrid stands still for three minutes when a site dies in mid-upload), and
the bytes of an instruction that nobody takes any more are freed.
"""

import json
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.date import now
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.object_store import NoObjectInStoreError

TTL_S = 7 * 86400.0
SLACK_BYTES = 2 << 20


class LinkStateGrid(Grid):  # type: ignore[misc]
    """Pushes instructions to nodes and collects replies. One thread uses it."""

    def __init__(self, state: Any, *, max_reply_bytes: int) -> None:
        """A reply that would unpack to more than `max_reply_bytes` becomes an error message."""
        self._state = state
        self._max_reply_bytes = max_reply_bytes
        self._run: Any = None
        self._heads: dict[str, Message] = {}  # replies whose objects are still arriving
        self._pinned: dict[str, None] = {}

    def set_run(self, run: Any) -> None:
        """Starts over in another flwr run: what belonged to the previous one is gone."""
        self._run = run
        self._heads.clear()
        self._pinned.clear()

    @property
    def run(self) -> Any:
        """The flwr run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """An instruction of this run; does not use flwr's process-wide task identity."""
        metadata = Metadata(
            run_id=self._run.run_id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=now().timestamp(),
            ttl=TTL_S if ttl is None else ttl,
            message_type=message_type,
        )
        metadata.delivered_at = ""
        return make_message(metadata=metadata, content=content)

    def get_nodes(self) -> list[Any]:
        """The nodes that are online."""
        online = self._state.get_nodes(self._run.run_id)
        return list(self._state.get_node_info(node_ids=list(online)))

    def get_node_ids(self) -> list[int]:
        """Ids of the nodes that are online."""
        return [node.node_id for node in self.get_nodes()]

    def pin(self, arrays: ArrayRecord) -> None:
        """Stores a record once and keeps it, so that many instructions can refer to its objects.

        Without it, a site that confirms its copy could free the objects while the next instruction
        is being stored. Pinning another record lets go of the previous one.
        """
        anchor = RecordDict({"anchor": ConfigRecord({"pinned": True}), "arrays": arrays})
        store = self._state.object_store
        with objects.no_object_id_recompute():
            root = anchor.object_id
            if root in self._pinned:
                return
            missing = set(store.preregister(self._run.run_id, objects.get_object_tree(anchor)))
            for object_id, part in objects.get_all_nested_objects(anchor).items():
                if object_id in missing:
                    store.put(object_id, part.deflate())
        for old in self._pinned:
            store.delete(old)
        self._pinned = {root: None}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Stores instructions; an id for each, "" where flwr did not take it."""
        ids = []
        for message in messages:
            with objects.no_object_id_recompute():
                ids.append(self._push(message))
        return ids

    def _push(self, message: Message) -> str:
        state, run_id = self._state, self._run.run_id
        message.metadata.__dict__["_message_id"] = message.object_id
        session = state.start_session(run_id)
        stored, missing = state.store_message_and_object_tree(
            remove_content_from_message(message), objects.get_object_tree(message), session
        )
        if stored and missing:
            nested, wanted = objects.get_all_nested_objects(message), set(missing)
            stored = all(
                state.store_object(run_id, session, object_id, nested[object_id].deflate())
                for object_id in nested
                if object_id in wanted
            )
        if not stored:
            self.cancel([message.metadata.message_id])
        return str(message.metadata.message_id) if stored else ""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are here completely, and an error message for each one that cannot come.

        Ask only for instructions of nodes that are online: for an offline node flwr answers with an
        error even if the node's reply has arrived.
        """
        asked = set(message_ids)
        waiting = asked - set(self._heads)
        for head in self._state.get_message_res(waiting, self._run.run_id):
            self._heads[head.metadata.reply_to_message_id] = head
        complete = []
        for instruction in [i for i in self._heads if i in asked]:
            head = self._heads[instruction]
            message = head if head.has_error() else self._assemble(head)
            if message is None:
                continue
            message.metadata.__dict__["_message_id"] = head.metadata.message_id
            self._state.object_store.delete(head.metadata.message_id)
            self.cancel([instruction])
            complete.append(message)
        return complete

    def cancel(self, message_ids: Iterable[str]) -> None:
        """Forgets instructions and frees their bytes; flwr then drops replies to them silently."""
        ids = set(message_ids)
        self._state.delete_messages(ids)
        for instruction in ids:
            self._heads.pop(instruction, None)
            self._state.object_store.delete(instruction)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Not offered: it would block until the slowest site has answered."""
        raise NotImplementedError("use push_messages and pull_messages: rounds never block")

    def _assemble(self, head: Message) -> Message | None:
        """The whole reply; None while objects are missing; an error message if they never come."""
        contents: dict[str, bytes] = {}
        root = head.metadata.message_id
        try:
            tree = self._state.object_store.get_object_tree(root)
            # Root first. `get_object` also ends an upload that has been silent for three minutes.
            for node in reversed(list(objects.iterate_object_tree(tree))):
                content = self._state.get_object(self._run.run_id, node.object_id)
                if content is None:
                    return self._failed(head, "the upload of the reply stopped half-way")
                if content == b"":
                    return None
                contents[node.object_id] = content
            size = _unpacked_bytes(contents)
            if size > self._max_reply_bytes:
                return self._failed(head, f"the reply unpacks to {size} bytes, too many")
            return inflatable_utils.inflate_object_from_contents(root, contents)
        except NoObjectInStoreError:
            return self._failed(head, "the upload of the reply stopped half-way")
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            return self._failed(head, f"the reply cannot be read ({fault})")

    def _failed(self, head: Message, reason: str) -> Message:
        told = head.metadata
        metadata = Metadata(
            run_id=told.run_id,
            message_id="",
            src_node_id=told.src_node_id,
            dst_node_id=SUPERLINK_NODE_ID,
            reply_to_message_id=told.reply_to_message_id,
            group_id=told.group_id,
            created_at=told.created_at,
            ttl=told.ttl,
            message_type=told.message_type,
        )
        return make_message(metadata=metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))


def _unpacked_bytes(contents: dict[str, bytes]) -> int:
    """How large a reply is once its arrays are put together: one chunk may be named many times."""
    total = 0
    for content in contents.values():
        kind, children, _ = objects.get_object_head_values_from_object_content(content)
        if kind == "Array":
            named = json.loads(content.split(b"\x00", 1)[1])["arraychunk_ids"]
            total += sum(len(contents[children[index]]) for index in named)
        elif kind != "ArrayChunk":
            total += len(content)
    return total
