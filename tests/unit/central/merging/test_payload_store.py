"""Payloads are kept whole under validated names, or not at all."""

import pytest
from blake3 import blake3

from pww.central.payload_store import PayloadStore
from pww.errors import PayloadError
from pww.wire import PayloadInfo

ID = "0123456789abcdef" * 2


def info_of(data: bytes) -> PayloadInfo:
    return PayloadInfo(codec="fp32", size_bytes=len(data), digest=blake3(data).hexdigest())


@pytest.mark.parametrize("durable", [False, True])
def test_a_payload_is_copied_or_linked_found_and_dropped(tmp_path, durable):
    store = PayloadStore(tmp_path / "s")
    data = b"x" * 9_000_000  # more than one chunk
    (tmp_path / "in").write_bytes(data)
    path = store.put(ID, tmp_path / "in", info_of(data), durable=durable)
    assert path.read_bytes() == data == (tmp_path / "in").read_bytes()
    assert path.samefile(tmp_path / "in") == durable
    assert store.has(ID, info_of(data))
    assert not store.has(ID, info_of(b"other"))
    assert not store.has("f" * 32, info_of(data))
    store.drop(ID)
    store.drop(ID)
    assert not store.has(ID, info_of(data))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("came", [b"", b"ab", b"abx", b"abcd", b"abc" * 3_000_000])
def test_other_bytes_than_announced_are_not_kept(tmp_path, came, durable):
    store = PayloadStore(tmp_path / "s")
    (tmp_path / "in").write_bytes(came)
    with pytest.raises(PayloadError, match=r"3 bytes with BLAKE3 .* were announced, \d+"):
        store.put(ID, tmp_path / "in", info_of(b"abc"), durable=durable)
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.parametrize("name", ["", "../../x", ID + "\n", ID.upper(), ID[:-1]])
def test_nothing_but_an_id_names_a_file(tmp_path, name):
    with pytest.raises(AssertionError, match="ids are validated where they come in"):
        PayloadStore(tmp_path).path(name)


def test_sweeping_keeps_what_is_named(tmp_path):
    store = PayloadStore(tmp_path / "s")
    (tmp_path / "in").write_bytes(b"abc")
    for name in (ID, "f" * 32):
        store.put(name, tmp_path / "in", info_of(b"abc"))
    (tmp_path / "s" / "x.part").write_bytes(b"")
    store.sweep(keep={ID})
    assert [p.name for p in (tmp_path / "s").iterdir()] == [f"{ID}.payload"]
