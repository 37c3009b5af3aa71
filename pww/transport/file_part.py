"""Bytes of an open file as the body of a request: sent by the system where it can, never held.

`sendfile` gives the socket the page cache's own pages: a sender that reads copies every byte twice
more. TLS has to see the bytes, and some file systems cannot do it: then they are read and sent.
"""

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from pww.errors import PayloadError
from pww.transport.memory import thread_buffer

SLICE = 256 << 10
"""Read and sent at once: a timeout is for so many bytes, however large the body is."""
RUN = 1 << 20
"""Sent at once where nothing is read."""
UNABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK)


class Unable(Exception):
    """The system does not send this file over this socket by itself: read it, and send that."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """The bytes from `start` to `stop` of the file `fd`."""

    fd: int
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return self.stop - self.start

    def crc32c(self) -> int:
        """CRC-32C of them, which is read for it.

        Raises:
            PayloadError: the file has become shorter.
        """
        crc = 0
        for data in self._slices(self.start):
            crc = google_crc32c.extend(crc, data)
        return crc

    def send(self, sock: socket.socket, *, timeout_s: float, sent: Callable[[int], None]) -> None:
        """Sends all of it over a connected socket that has this timeout; `sent` counts its bytes.

        Raises:
            PayloadError: the file has become shorter.
            OSError: the connection failed, or took nothing for so long.
        """
        at = self.start
        if not isinstance(sock, ssl.SSLSocket):
            at = self._sendfile(sock, timeout_s, sent)
        for data in self._slices(at):
            sock.sendall(data.data)
            sent(len(data))

    def _sendfile(self, sock: socket.socket, timeout_s: float, sent: Callable[[int], None]) -> int:
        """The first byte that was not sent, because this cannot be done with this file."""
        room, at = select.poll(), self.start
        room.register(sock, select.POLLOUT)
        while at < self.stop:
            try:
                went = self.give(sock.fileno(), at)
            except BlockingIOError:
                if not room.poll(timeout_s * 1e3):
                    raise TimeoutError("timed out") from None
            except Unable:
                return at
            else:
                at += went
                sent(went)
        return at

    def give(self, sock: int, at: int) -> int:
        """Has the system send some bytes from `at` on, as many as the socket takes; how many.

        Raises:
            Unable: it cannot.
            PayloadError: the file has become shorter.
            BlockingIOError: the socket takes none now.
            OSError: the connection or the disk failed.
        """
        try:
            went = os.sendfile(sock, self.fd, at, min(RUN, self.stop - at))
        except OSError as why:
            if why.errno in UNABLE:
                raise Unable from why
            raise
        if went == 0:
            raise _shorter()
        return went

    def _slices(self, start: int) -> Iterator[NDArray[np.uint8]]:
        """What is read, in this thread's memory: one lasts until the next."""
        buffer = np.frombuffer(thread_buffer(SLICE), dtype=np.uint8)
        for at in range(start, self.stop, SLICE):
            data = buffer[: self.stop - at]
            if os.preadv(self.fd, [data.data], at) != len(data):
                raise _shorter()
            yield data


def _shorter() -> PayloadError:
    return PayloadError("the file became shorter while it was sent: write it again")
