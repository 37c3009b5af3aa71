"""The Unix-domain socket of the books: bound for one user only, whole messages in and out.

    central/books/          mode 0700
        socket              mode 0600; a file that a dead process left is replaced

A message is its length in four bytes and its body. A path of any length works: the kernel takes a
hundred bytes, so a longer one is named through an open handle of its folder.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pww.clock import Clock
from pww.errors import StateError

MAX_BYTES = 64 << 20
"""Of one message; the largest are a thousand rounds' reports, a few hundred kB."""
FRAME_S = 10.0
"""A message that has begun is here, or taken, within so long."""
SLICE_S = 0.25
"""How often a wait looks up."""
SHORT = 100
_LENGTH = struct.Struct(">I")


class Gone(Exception):
    """The other end hung up, is too slow, or sent what is no message."""


def path_in(state: Path) -> Path:
    """Where the socket of a central's state folder is, or would be."""
    return state / "books" / "socket"


def listen(path: Path) -> socket.socket:
    """A listening socket that nobody but this user can reach; who holds the run's lock calls it.

    Raises:
        StateError: the folder's disk cannot hold one.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)
        with _short(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(8)
    except OSError as why:
        listener.close()
        raise StateError(
            f"no socket can be made in {path.parent} ({why}), which the aggregator needs: put "
            "run.root on a local disk, or serve both with central.roles=[coordinator,aggregator]"
        ) from why
    return listener


def connect(path: Path) -> socket.socket:
    """A connection.

    Raises:
        OSError: nobody listens.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(FRAME_S)
        with _short(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection


class Channel:
    """Messages over one connection. Not thread-safe."""

    def __init__(self, connection: socket.socket, *, clock: Clock) -> None:
        self._connection, self._clock = connection, clock

    def send(self, body: bytes) -> None:
        """Sends one message.

        Raises:
            Gone: it was not taken.
        """
        assert len(body) <= MAX_BYTES, "no message of ours is so large"
        try:
            self._connection.settimeout(FRAME_S)
            self._connection.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as why:
            raise Gone(str(why)) from why

    def receive(self, *, wait_s: float, gives_up: Callable[[], bool]) -> bytes:
        """The next message, which begins within `wait_s`, and before `gives_up()` is true.

        Raises:
            Gone: it did not come.
        """
        head = self._exactly(_LENGTH.size, wait_s, gives_up)
        (size,) = _LENGTH.unpack(head)
        if size > MAX_BYTES:
            raise Gone(f"a message of {size} bytes was announced, more than {MAX_BYTES}")
        return self._exactly(size, FRAME_S, gives_up)

    def hung_up(self) -> bool:
        """Whether the other end is gone; reads nothing."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()

    def _exactly(self, size: int, wait_s: float, gives_up: Callable[[], bool]) -> bytes:
        got = bytearray()
        until_s = self._clock.monotonic() + wait_s
        self._connection.settimeout(SLICE_S)
        while len(got) < size:
            try:
                piece = self._connection.recv(min(size - len(got), 1 << 20))
                if not piece:
                    raise Gone("it hung up")
            except TimeoutError:
                piece = b""
            except OSError as why:
                raise Gone(str(why)) from why
            now_s = self._clock.monotonic()
            if piece and not got:
                until_s = min(until_s, now_s + FRAME_S)
            got += piece
            if len(got) < size and (now_s >= until_s or gives_up()):
                raise Gone("nothing came, or not all of it")
        return bytes(got)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket that the kernel takes; it holds inside the block."""
    if len(os.fsencode(path)) <= SHORT:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
