"""Keys, runs and the grid's own limits, on a real SuperLink database."""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable import inflatable_object as objects
from sqlalchemy import Engine, event

from pww.errors import Refused, StateError
from pww.federation.grid import _unpacked_bytes
from pww.federation.superlink import EmbeddedSuperLink, canonical_key


@dataclass(frozen=True)
class Person:
    replica: str
    incarnation: str
    node_key: str


def pem(curve: ec.EllipticCurve | None = None) -> str:
    key = ec.generate_private_key(curve or ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def person(replica: str = "s/a") -> Person:
    return Person(replica, uuid4().hex, pem())


@pytest.fixture
def link(tmp_path: Path) -> Iterator[EmbeddedSuperLink]:
    built = EmbeddedSuperLink(tmp_path, limit_mb=1)
    yield built
    built.close()


def names(link: EmbeddedSuperLink) -> list[str]:
    return sorted(node.name for node in link.nodes().values())


def test_joining_is_idempotent_and_silence_keeps_the_key(link: EmbeddedSuperLink) -> None:
    a = person()
    link.joined(a)
    link.joined(replace(a, node_key=a.node_key.replace("\n", "\r\n")))
    [(key, node)] = link.nodes().items()
    assert key == canonical_key(a.node_key)
    link.left(a)
    link.joined(a)
    assert [n.node_id for n in link.nodes().values()] == [node.node_id]


def test_a_replaced_key_and_one_that_left_for_good_are_withdrawn(link: EmbeddedSuperLink) -> None:
    old, new, other = person("s/a"), person("s/a"), person("s/b")
    for one in (old, other, new):
        link.joined(one)
    assert set(link.nodes()) == {canonical_key(new.node_key), canonical_key(other.node_key)}
    link.left(other, for_good=True)
    link.left(other, for_good=True)
    assert names(link) == ["s/a"]
    for gone in (old, other):
        with pytest.raises(Refused, match="withdrawn before, and a withdrawn key never returns"):
            link.joined(gone)


def test_who_registers_again_can_activate_its_node_again(link: EmbeddedSuperLink) -> None:
    """Its first activation was done and the answer lost: it knows no node to deactivate."""
    member = person()
    with link.run():
        link.joined(member)
        node_id = next(iter(link.nodes().values())).node_id
        assert link.state.activate_node(node_id, 3600.0)
        assert not link.state.activate_node(node_id, 3600.0), "flwr refuses it, it is online"
        link.joined(member)
        assert link.state.activate_node(node_id, 3600.0)


def test_a_member_without_a_key_takes_no_part(link: EmbeddedSuperLink) -> None:
    link.joined(Person("s/a", uuid4().hex, ""))
    link.left(Person("s/a", uuid4().hex, ""), for_good=True)
    assert link.nodes() == {}


def test_what_is_no_key_of_ours_is_refused(link: EmbeddedSuperLink) -> None:
    for bad in ("hello", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(Refused, match="no PEM public key"):
            link.joined(Person("s/a", uuid4().hex, bad))
    with pytest.raises(Refused, match="not an EC key on the curve P-384"):
        link.joined(Person("s/a", uuid4().hex, pem(ec.SECP256R1())))


def test_joining_from_many_threads_makes_one_node_each(link: EmbeddedSuperLink) -> None:
    people = [person(f"s/{n}") for n in range(4)] * 2
    threads = [threading.Thread(target=link.joined, args=(one,)) for one in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(link) == ["s/0", "s/1", "s/2", "s/3"]


def test_nodes_outlive_the_process_and_runs_do_not(tmp_path: Path) -> None:
    a = person()
    seen = []
    for _ in range(2):
        link = EmbeddedSuperLink(tmp_path, limit_mb=1)
        link.joined(a)
        with link.run():
            seen.append((link.grid.run.run_id, next(iter(link.nodes().values())).node_id))
        link.close()
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]


def test_a_start_that_was_killed_while_it_made_the_tables_is_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    for name in ("superlink.db.part", "superlink.db.part-wal"):
        (folder / name).write_bytes(b"half")
    EmbeddedSuperLink(folder, limit_mb=1).close()
    assert not list(folder.glob("*.part*"))
    with sqlite3.connect(folder / "superlink.db") as file:
        assert file.execute("SELECT count(*) FROM node").fetchone() == (0,)


def test_a_kill_at_any_table_leaves_nothing_that_stops_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at the n-th table, and at the last moment before the file has its name."""

    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dies)
        with pytest.raises(Killed):
            EmbeddedSuperLink(tmp_path, limit_mb=1)
    assert not (tmp_path / "superlink.db").exists()
    seen = 0

    def at_table(connection: object, cursor: object, statement: str, *_: object) -> None:
        nonlocal seen
        if statement.lstrip().upper().startswith("CREATE TABLE"):
            seen += 1
            if seen == 4:
                raise Killed

    event.listen(Engine, "before_cursor_execute", at_table)
    try:
        with pytest.raises(Killed):
            EmbeddedSuperLink(tmp_path, limit_mb=1)
    finally:
        event.remove(Engine, "before_cursor_execute", at_table)
    assert not (tmp_path / "superlink.db").exists()
    EmbeddedSuperLink(tmp_path, limit_mb=1)


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "superlink.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StateError, match=r"cannot open .*superlink\.db.*delete it and start again"):
        EmbeddedSuperLink(tmp_path, limit_mb=1)


def test_a_run_that_flower_ended_is_replaced(
    link: EmbeddedSuperLink, caplog: pytest.LogCaptureFixture
) -> None:
    with link.run():
        first = link.grid.run.run_id
        assert not link.renew()
        link._lost.set()
        with caplog.at_level(logging.WARNING, "pww.federation.superlink"):
            assert link.renew()
        assert "for want of a heartbeat" in caplog.text
        assert link.grid.run.run_id != first
        assert not link.renew()


def online(link: EmbeddedSuperLink) -> int:
    """A node that is online, without a network."""
    link.joined(person())
    node_id = next(iter(link.nodes().values())).node_id
    assert link.state.activate_node(node_id, 60.0)
    return int(node_id)


def test_a_cancelled_instruction_frees_its_bytes_and_a_pinned_record_stays(
    link: EmbeddedSuperLink,
) -> None:
    with link.run():
        node_id, store = online(link), link.state.object_store
        data = ArrayRecord({"payload": Array("uint8", (9,), "pww.payload", b"x" * 9)})
        link.grid.pin(data)
        pinned = len(store)
        ids = []
        for number in range(3):
            content = RecordDict({"pww": ConfigRecord({"n": number}), "payload": data})
            message = link.grid.create_message(content, "train", node_id, "0")
            ids += link.grid.push_messages([message])
        assert len(set(ids)) == 3
        assert "" not in ids
        assert len(store) > pinned
        link.grid.cancel(ids)
        assert len(store) == pinned
        link.grid.pin(data)
        assert len(store) == pinned
        link.grid.pin(ArrayRecord({"payload": Array("uint8", (1,), "pww.payload", b"y")}))
        assert len(store) == pinned
        assert link.state.num_message_ins() == 0


def test_an_instruction_to_nobody_is_not_taken(link: EmbeddedSuperLink) -> None:
    with link.run():
        message = link.grid.create_message(RecordDict({"c": ConfigRecord()}), "train", 77, "0")
        assert link.grid.push_messages([message]) == [""]
        assert len(link.state.object_store) == 0


def test_rounds_never_block_on_flwr(link: EmbeddedSuperLink) -> None:
    with pytest.raises(NotImplementedError, match="rounds never block"):
        link.grid.send_and_receive([])


@pytest.mark.parametrize("size", [0, 1, 5_242_880, 12_000_000])
def test_the_unpacked_size_counts_a_chunk_as_often_as_it_is_named(size: int) -> None:
    # All zeros: every whole chunk is the same object, stored and sent once.
    record = ArrayRecord({"payload": Array("uint8", (size,), "pww.payload", bytes(size))})
    nested = objects.get_all_nested_objects(record)
    contents = {object_id: part.deflate() for object_id, part in nested.items()}
    assert size <= _unpacked_bytes(contents) <= size + 1000
