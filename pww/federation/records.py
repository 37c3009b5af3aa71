"""Our messages as Flower records and back, checked on the way in: JSON beside at most one payload.

    RecordDict   "pww"      ConfigRecord  protocol, json, ticket
                 "payload"  ArrayRecord   one uint8 Array "payload", stype "pww.payload": a file

One array, so that Flower cuts it into its 5 MiB objects whatever tensors are inside. The ticket is
128 random bits that make the id of an instruction (a hash of its content) unguessable: whoever
answers it has received it.
"""

import secrets
from pathlib import Path
from typing import Annotated, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import Field, TypeAdapter, ValidationError

from pww.errors import PayloadError
from pww.transport.digest import file_digest, new_digest
from pww.wire import PROTOCOL, Invitation, Offer, PayloadInfo, Seed

M = TypeVar("M", bound=Invitation | Offer | Seed)
MESSAGE, PAYLOAD, STYPE = "pww", "payload", "pww.payload"
MB = 1_000_000
SLACK_CHUNKS = 32
MAX_JSON_BYTES = 1 << 20

INVITATION: TypeAdapter[Invitation] = TypeAdapter(Invitation)
REPLY: TypeAdapter[Offer | Seed] = TypeAdapter(Annotated[Offer | Seed, Field(discriminator="kind")])


def payload_of(message: Invitation | Offer | Seed) -> PayloadInfo | None:
    """What must lie beside a message; None for nothing.

    Nothing is beside an offer that is not finite, or what another carrier brings.
    """
    match message:
        case Offer():
            return message.payload if message.finite and not message.carried else None
        case Seed():
            return None if message.carried else message.payload
        case Invitation(beside="update"):
            return message.updates[-1].payload if message.updates else None
        case Invitation(beside="nothing"):
            return None
        case Invitation():
            return message.payload


def describe(path: Path, *, codec: str) -> PayloadInfo:
    """The payload that a file is.

    Raises:
        PayloadError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = file_digest(file)
        return PayloadInfo(codec=codec, size_bytes=path.stat().st_size, digest=digest)
    except OSError as fault:
        raise PayloadError(f"cannot read payload {path}: {fault.strerror}") from fault


def pack_payload(path: Path, info: PayloadInfo, *, limit_mb: int) -> ArrayRecord:
    """A payload file as a record; the whole file is in memory afterwards.

    Raises:
        PayloadError: over the limit, unreadable, or not what `info` says.
    """
    _check_limit(info.size_bytes, limit_mb)
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise PayloadError(f"cannot read payload {path}: {fault.strerror}") from fault
    check_payload(data, info)
    return ArrayRecord({PAYLOAD: Array("uint8", (len(data),), STYPE, data)})


def pack(message: Invitation | Offer | Seed, payload: ArrayRecord | None) -> RecordDict:
    """A message and its packed payload as the content of one Flower message."""
    head = {
        "protocol": PROTOCOL,
        "json": message.model_dump_json(),
        "ticket": secrets.token_hex(16),
    }
    content = RecordDict({MESSAGE: ConfigRecord(head)})
    if payload is not None:
        content[PAYLOAD] = payload
    return content


def unpack(record: RecordDict, kind: TypeAdapter[M], *, limit_mb: int) -> tuple[M, bytes | None]:
    """The message and the payload's bytes, both exactly as announced.

    Raises:
        PayloadError: anything is off; the text says what.
    """
    unknown = set(record) - {MESSAGE, PAYLOAD}
    if unknown:
        raise PayloadError(f"unknown records {sorted(unknown)}: known are {MESSAGE} and {PAYLOAD}")
    try:
        message = kind.validate_json(_json(record))
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise PayloadError(f"not a message of this protocol: {where}: {first['msg']}") from None
    info = payload_of(message)
    if info is None:
        if PAYLOAD in record:
            raise PayloadError("a payload came with a message that announces none")
        return message, None
    data = _payload(record)
    _check_limit(len(data), limit_mb)
    check_payload(data, info)
    return message, data


def check_payload(data: bytes, info: PayloadInfo) -> None:
    """Whether bytes are the announced ones.

    Raises:
        PayloadError: another size or another digest.
    """
    if len(data) != info.size_bytes:
        raise PayloadError(
            f"payload has {len(data)} bytes, announced are {info.size_bytes}: it is another file"
        )
    digest = new_digest(data).hexdigest()
    if digest != info.digest:
        raise PayloadError(
            f"payload has BLAKE3 {digest}, announced is {info.digest}: its bytes were changed"
        )


def _check_limit(size_bytes: int, limit_mb: int) -> None:
    if size_bytes > limit_mb * MB:
        raise PayloadError(
            f"a payload of {size_bytes / MB:.1f} MB cannot travel inside Flower messages: "
            f"transport.limit_mb={limit_mb} is the largest; raise it at the central and at every "
            "site, or choose a smaller codec or model"
        )


def _json(record: RecordDict) -> str:
    """The message's JSON, after its protocol number."""
    head = record.get(MESSAGE)
    if not isinstance(head, ConfigRecord):
        raise PayloadError(f"no config record {MESSAGE!r}: not a message of pww")
    if head.get("protocol") != PROTOCOL:
        raise PayloadError(
            f"protocol {head.get('protocol')!r} meets protocol {PROTOCOL}: run the same pww at the "
            "central and at every site"
        )
    text = head.get("json")
    if not isinstance(text, str) or len(text) > MAX_JSON_BYTES:
        raise PayloadError(f"the message is no text of at most {MAX_JSON_BYTES} bytes")
    return text


def _payload(record: RecordDict) -> bytes:
    """The bytes of the one array."""
    arrays = record.get(PAYLOAD)
    if not isinstance(arrays, ArrayRecord):
        raise PayloadError("the announced payload is missing")
    array = arrays.get(PAYLOAD)
    if len(arrays) != 1 or array is None or (array.dtype, array.stype) != ("uint8", STYPE):
        raise PayloadError(f"the payload is not one uint8 array {PAYLOAD!r} of stype {STYPE}")
    return bytes(array.data)
