"""How fast bytes travel between here and a central's blob port, by its probe: nothing is kept.

The amount grows until moving it took long enough to mean something, so that a slow way costs
seconds and a fast one is still measured over all its connections.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pww.transport.blob_link import BlobLink
from pww.transport.blob_peer import BlobPeer
from pww.transport.blob_wire import PROBE, PROBE_BYTES
from pww.transport.file_part import FilePart
from pww.transport.http_connection import Faults
from pww.transport.memory import thread_buffer
from pww.transport.retry import TryAgain
from pww.transport.streams import Progress

FIRST_BYTES, MOST_BYTES = 1 << 20, 2 << 30
GROW = 4
LONG_S = 1.5
"""Less is mostly the start of connections."""
LEAST_BYTES = 64 << 10
"""Of one request: a small amount still goes over every connection."""
_BITE = 256 << 10


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes a second, and how that was found."""

    bytes_per_s: float
    moved_bytes: int
    streams: int  # at the start; more are opened where that is faster


def measure(link: BlobLink, way: Literal["up", "down"]) -> Rate:
    """Moves more and more bytes `way` until it took `LONG_S`.

    Raises:
        CentralError: the other side refused it, or gave no answer within the deadline.
        Stopped: somebody asked to stop.
        OSError: no memory for a few megabytes.
    """
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(PROBE_BYTES))
        file.flush()
        total_bytes = FIRST_BYTES
        while True:
            size_bytes = min(max(total_bytes // link.tuning.min_streams, LEAST_BYTES), PROBE_BYTES)
            count = max(total_bytes // size_bytes, 1)
            seconds = _move(link, _work(way, file.fileno(), size_bytes), count, size_bytes)
            if seconds >= LONG_S or total_bytes >= MOST_BYTES:
                moved_bytes = count * size_bytes
                streams = min(link.tuning.min_streams, count)
                return Rate(moved_bytes / max(seconds, 1e-9), moved_bytes, streams)
            total_bytes *= GROW


def _move(
    link: BlobLink, work: Callable[[BlobPeer], None], count: int, size_bytes: int
) -> float:  # fmt: skip
    """Seconds for `count` requests of `size_bytes`."""
    progress = Progress("measuring", total_bytes=count * size_bytes, clock=link.clock)

    def piece(peer: BlobPeer, number: int) -> None:
        work(peer)
        progress.add(size_bytes)

    link.move(piece, range(count), progress)
    return progress.end()


def _work(way: Literal["up", "down"], fd: int, size_bytes: int) -> Callable[[BlobPeer], None]:
    def send(peer: BlobPeer) -> None:
        peer.ask("PUT", PROBE, body=FilePart(fd, 0, size_bytes))

    def fetch(peer: BlobPeer) -> None:
        reply = peer.open("GET", f"{PROBE}/{size_bytes}", headers={})
        if reply.status != 200:
            raise peer.judged(reply, peer.small(reply))
        peer.expect(size_bytes)
        left = size_bytes
        while left:
            try:
                got = reply.readinto(thread_buffer(min(_BITE, left)))
            except Faults as fault:
                raise peer.broken(fault) from fault
            if got == 0:
                peer.drop()
                raise TryAgain(f"{size_bytes} bytes ended {left} bytes early")
            left -= got
            peer.came(got)

    return send if way == "up" else fetch
