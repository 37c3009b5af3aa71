"""The books' socket: one user's, whatever its path is; garbage on it costs nobody anything."""

import json
import logging
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pww import __version__
from pww.central import books_server, books_socket
from pww.central.books_server import BooksServer
from pww.central.books_socket import Channel, Gone, connect, listen, path_in
from pww.central.member_feed import MemberFeed
from pww.clock import SystemClock
from pww.errors import StateError

CLOCK, NEVER = SystemClock(), threading.Event()
ATTACH = json.dumps({"call": "attach", "process": "1" * 32, "version": __version__}).encode()
EXHAUSTED = b'{"call": "ask", "what": "exhausted"}'


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.fixture
def path(desk, tmp_path: Path) -> Iterator[Path]:
    path = path_in(tmp_path)
    server = BooksServer(desk.books, MemberFeed(), path=path, clock=CLOCK)
    server.start()
    yield path
    server.close()


class Peer:
    """A process that speaks in bytes."""

    def __init__(self, path: Path) -> None:
        self.socket = connect(path)
        self.socket.settimeout(20)

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def hear(self) -> bytes:
        """The next message, b"" when the other end has hung up."""
        try:
            head = self.socket.recv(4, socket.MSG_WAITALL)
            return (
                self.socket.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL) if head else b""
            )
        except ConnectionResetError:  # it did not even read all of it
            return b""

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def peer(path: Path) -> Iterator[Peer]:
    peer = Peer(path)
    yield peer
    peer.close()


def drip(peer: Peer, body: bytes) -> None:
    for byte in body:
        peer.say(bytes([byte]))
        CLOCK.wait(NEVER, 0.02)


def answers(path: Path) -> bool:
    """Whether an honest process is served."""
    honest = Peer(path)
    try:
        for _ in range(500):  # while the one before is being let go of
            honest.say(framed(ATTACH))
            if honest.hear()[:1] == b"+":
                break
            CLOCK.wait(NEVER, 0.01)
        honest.say(framed(EXHAUSTED))
        return honest.hear() == b"+false"
    finally:
        honest.close()


def test_nobody_else_can_reach_it(path: Path) -> None:
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert answers(path)


def test_a_folder_that_was_open_to_others_is_closed_first(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.parent.mkdir(mode=0o777)
    path.parent.chmod(0o777)
    listen(path).close()
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("length", [60, 99, 100, 101, 108, 400])
def test_a_path_of_any_length(length: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pww") as base:
        folder, left = Path(base), length - len(os.fsencode(path_in(Path(base))))
        while left > 0:
            part = left if left <= 200 else 100
            folder, left = folder / ("d" * (part - 1)), left - part
        path = path_in(folder)
        assert len(os.fsencode(path)) == length
        listener = listen(path)
        open_files = len(os.listdir("/proc/self/fd"))
        connect(path).close()
        assert len(os.listdir("/proc/self/fd")) == open_files
        assert path.stat().st_mode & 0o777 == 0o600
        listener.close()


def test_a_file_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    listen(path).close()
    assert path.exists()
    with pytest.raises(ConnectionRefusedError):
        connect(path)
    again = listen(path)
    connect(path).close()
    again.close()


def test_a_disk_without_sockets_names_the_remedy(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.parent.write_text("")
    with pytest.raises(StateError, match=r"no socket can be made in .*books .*put run\.root on a"):
        listen(path)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"call": "drop"}',
        b'{"call": "ask", "what": "ledger"}', b'{"call": "ask", "what": "head", "more": 1}',
        b'{"call": "reject", "delta": "../x", "reason": ""}',
        b'{"call": "close_round", "merged": [], "generation": "../../x", "state_hash": "", "x": 1}',
        b'{"call": "receive", "offer": {}}', b'{"call": "attach", "process": "x"}',
        b'{"call": "tokens_total", "round": -1}', b'{"call": "verdicts", "replica": "a"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("attached", [False, True])
def test_what_is_no_call_ends_the_connection(
    path: Path, peer: Peer, desk, caplog, body: bytes, attached: bool
) -> None:
    before = desk.books.status()
    if attached:
        peer.say(framed(ATTACH))
        assert peer.hear()[:1] == b"+"
    peer.say(framed(body))
    answer = peer.hear()
    assert answer[:1] == b"-"
    fault = json.loads(answer[1:])
    assert fault["kind"] == "StateError"
    assert fault["message"].startswith("no call of the books: ")
    assert peer.hear() == b""
    assert caplog.text.count("hung up") == 1
    assert "Traceback" not in caplog.text
    assert answers(path)
    assert desk.books.status() == before


def test_nothing_is_answered_to_who_did_not_say_who_it_is(path: Path, peer: Peer, caplog) -> None:
    peer.say(framed(EXHAUSTED))
    assert peer.hear() == b""
    assert "ask came out of turn" in caplog.text
    assert answers(path)


def test_attaching_twice_is_out_of_turn(path: Path, peer: Peer, caplog) -> None:
    peer.say(framed(ATTACH))
    assert peer.hear()[:1] == b"+"
    peer.say(framed(ATTACH))
    assert peer.hear() == b""
    assert "attach came out of turn" in caplog.text
    assert answers(path)


def test_a_length_that_no_message_has_ends_the_connection(path: Path, peer: Peer, caplog) -> None:
    caplog.set_level(logging.DEBUG, "pww.central.books_server")
    peer.say(struct.pack(">I", books_socket.MAX_BYTES + 1) + b"x" * 1000)
    assert peer.hear() == b""
    assert f"{books_socket.MAX_BYTES + 1} bytes was announced" in caplog.text
    assert answers(path)


def test_half_a_message_then_nothing(path: Path) -> None:
    for piece in (b"\x00", framed(ATTACH)[:20], framed(ATTACH) + b"\x00\x00\x00\x09{"):
        peer = Peer(path)
        peer.say(piece)
        peer.close()
    assert answers(path)


def test_a_message_in_pieces_is_whole(path: Path, peer: Peer) -> None:
    peer.say(*(bytes([byte]) for byte in framed(ATTACH)))
    assert peer.hear()[:1] == b"+"
    peer.say(framed(EXHAUSTED) * 2)
    assert [peer.hear(), peer.hear()] == [b"+false"] * 2


def test_who_is_silent_or_slow_is_hung_up_on(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(books_server, "ATTACH_S", 0.3)
    monkeypatch.setattr(books_socket, "FRAME_S", 0.3)
    silent, slow = Peer(path), Peer(path)
    slow.say(framed(ATTACH)[:10])
    assert (silent.hear(), slow.hear()) == (b"", b"")
    drop = Peer(path)
    with pytest.raises(BrokenPipeError):  # a byte now and then is no message either
        drip(drop, struct.pack(">I", 10_000) + b" " * 150)
    for peer in (silent, slow, drop):
        peer.close()


def test_many_connections_are_not_kept(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(books_server, "ATTACH_S", 60.0)
    peers: list[Peer] = []
    while len(peers) < 40:
        try:
            peers.append(Peer(path))
        except BlockingIOError:  # more than the kernel keeps waiting
            CLOCK.wait(NEVER, 0.01)
    over = [peer for peer in peers[books_server.MAX_CONNECTIONS :] if peer.hear() == b""]
    assert len(over) == 40 - books_server.MAX_CONNECTIONS
    for peer in peers:
        peer.close()
    while not _room(path):  # it hears of the ends one by one
        CLOCK.wait(NEVER, 0.05)


def _room(path: Path) -> bool:
    try:
        return answers(path)
    except OSError:  # hung up on, as one too many
        return False


def test_a_message_that_nobody_takes_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(books_socket, "FRAME_S", 0.2)
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, clock=CLOCK)
        with pytest.raises(Gone, match="timed out"):
            channel.send(b"x" * (8 << 20))
        channel.close()
