"""Messages and payloads as Flower records: what goes in comes out, and anything else is named."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from pww.errors import PayloadError
from pww.federation.records import (
    INVITATION,
    REPLY,
    check_payload,
    describe,
    pack,
    pack_payload,
    payload_of,
    unpack,
)
from pww.wire import PROTOCOL, Invitation, Leased, Offer, PayloadInfo, PhaseMetrics, Seed, Span

TOKEN = "0" * 32
DIGEST = "1" * 64


def invitation(info: PayloadInfo | None) -> Invitation:
    return Invitation(
        committed_windows=0,
        kind="phase" if info else "seed", run=TOKEN, round=3, state_hash=DIGEST if info else "",
        payload=info, verdicts=(), report=None,
    )  # fmt: skip


def offer(info: PayloadInfo, *, finite: bool = True) -> Offer:
    metrics = PhaseMetrics(steps=1, tokens=7, loss=1.0, phase_seconds=1.0, tokens_per_s=7.0)
    return Offer(
        run=TOKEN, replica="s/a", incarnation=TOKEN, delta=TOKEN, prev="", base_round=0,
        base_hash=DIGEST,
        spans=(Leased(lease=1, span=Span(0, 2)),), tokens=7, partial=False, finite=finite,
        payload=info, metrics=metrics,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "payload"
    file.write_bytes(bytes(range(256)) * 40)
    return file


@given(data=st.binary(max_size=2000))
@settings(max_examples=50, deadline=None)
def test_bytes_and_message_survive(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("p") / "payload"
    path.write_bytes(data)
    info = describe(path, codec="fp32")
    arrays = pack_payload(path, info, limit_mb=1)
    seed = Seed(run=TOKEN, replica="s/a", incarnation=TOKEN, model=DIGEST, payload=info)
    for message, kind in [(invitation(info), INVITATION), (offer(info), REPLY), (seed, REPLY)]:
        assert unpack(pack(message, arrays), kind, limit_mb=1) == (message, data)  # type: ignore[type-var]


def test_no_payload_where_none_is_announced(path: Path) -> None:
    blank = invitation(None)
    assert unpack(pack(blank, None), INVITATION, limit_mb=1) == (blank, None)
    info = describe(path, codec="fp32")
    lost = offer(info, finite=False)
    assert payload_of(lost) is None
    assert unpack(pack(lost, None), REPLY, limit_mb=1) == (lost, None)
    with pytest.raises(PayloadError, match="announces none"):
        unpack(pack(lost, pack_payload(path, info, limit_mb=1)), REPLY, limit_mb=1)


def test_two_messages_of_one_content_have_different_ids() -> None:
    first, second = pack(invitation(None), None), pack(invitation(None), None)
    assert first.object_id != second.object_id
    assert len(str(first["pww"]["ticket"])) == 32


def test_the_limit_counts_on_the_way_out_and_in(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(bytes(1_000_000))
    info = describe(path, codec="fp32")
    arrays = pack_payload(path, info, limit_mb=1)
    path.write_bytes(bytes(1_000_001))
    large = describe(path, codec="fp32")
    with pytest.raises(PayloadError, match=r"1\.0 MB cannot travel.*transport\.limit_mb=1"):
        pack_payload(path, large, limit_mb=1)
    content = pack(offer(large), pack_payload(path, large, limit_mb=2))
    with pytest.raises(PayloadError, match=r"transport\.limit_mb=1 is the largest"):
        unpack(content, REPLY, limit_mb=1)
    assert unpack(pack(offer(info), arrays), REPLY, limit_mb=1)[1] == bytes(1_000_000)


def test_bytes_that_changed_are_refused(path: Path) -> None:
    info = describe(path, codec="fp32")
    data = bytearray(path.read_bytes())
    check_payload(bytes(data), info)
    with pytest.raises(PayloadError, match=r"has 10239 bytes, announced are 10240"):
        check_payload(bytes(data[:-1]), info)
    data[5] ^= 1
    with pytest.raises(PayloadError, match=r"announced is [0-9a-f]{64}: its bytes were changed"):
        check_payload(bytes(data), info)
    path.write_bytes(bytes(data))
    with pytest.raises(PayloadError, match="its bytes were changed"):
        pack_payload(path, info, limit_mb=1)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    info = PayloadInfo(codec="fp32", size_bytes=1, digest=DIGEST)
    with pytest.raises(PayloadError, match=r"cannot read payload .*nowhere: No such file"):
        describe(tmp_path / "nowhere", codec="fp32")
    with pytest.raises(PayloadError, match=r"cannot read payload .*nowhere: No such file"):
        pack_payload(tmp_path / "nowhere", info, limit_mb=1)


def head(**changes: Any) -> RecordDict:
    values = {"protocol": PROTOCOL, "json": invitation(None).model_dump_json(), "ticket": TOKEN}
    return RecordDict({"pww": ConfigRecord({**values, **changes})})


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (RecordDict(), "no config record 'pww'"),
        (RecordDict({"pww": ArrayRecord()}), "no config record 'pww'"),
        (RecordDict({"more": ConfigRecord()}), r"unknown records \['more'\]"),
        (head(protocol=99), f"protocol 99 meets protocol {PROTOCOL}: run the same pww"),
        (head(protocol="1"), f"protocol '1' meets protocol {PROTOCOL}"),
        (head(json=b"{}"), "no text of at most"),
        (head(json=" " * (1 << 21)), "no text of at most"),
        (head(json="{}"), r"not a message of this protocol: kind: Field required"),
        (head(json="<html>"), "not a message of this protocol: message: Invalid JSON"),
        (head(json='{"kind": "phase", "round": -1}'), "not a message of this protocol"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_named(record: RecordDict, text: str) -> None:
    with pytest.raises(PayloadError, match=text):
        unpack(record, INVITATION, limit_mb=1)


def test_a_reply_is_an_offer_or_a_seed() -> None:
    with pytest.raises(PayloadError, match="not a message of this protocol"):
        unpack(head(), REPLY, limit_mb=1)


@pytest.mark.parametrize(
    "arrays",
    [
        ArrayRecord(),
        ArrayRecord({"other": Array("uint8", (1,), "pww.payload", b"x")}),
        ArrayRecord({"payload": Array("float32", (1,), "pww.payload", b"xxxx")}),
        ArrayRecord({"payload": Array("uint8", (1,), "numpy.ndarray", b"x")}),
        ArrayRecord(
            {name: Array("uint8", (1,), "pww.payload", b"x") for name in ("payload", "more")}
        ),
    ],
)
def test_a_payload_is_one_array_of_bytes(path: Path, arrays: ArrayRecord) -> None:
    content = pack(invitation(describe(path, codec="fp32")), arrays)
    with pytest.raises(PayloadError, match="not one uint8 array 'payload' of stype"):
        unpack(content, INVITATION, limit_mb=1)


def test_an_announced_payload_must_be_there(path: Path) -> None:
    content = pack(invitation(describe(path, codec="fp32")), None)
    with pytest.raises(PayloadError, match="the announced payload is missing"):
        unpack(content, INVITATION, limit_mb=1)
