"""The carrier: moves one immutable file, known by its digest, between a site and the central.

Carriers are `blob` (the central's own HTTP store) and `fsspec` (object stores and shared file
systems). What is too small to need one travels inside messages. A carrier either leaves exactly the
announced bytes at their destination, or raises and leaves nothing there.
"""

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pww.errors import PayloadError
from pww.wire import PayloadInfo


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a carrier uses its link."""

    timeout_s: float = 30.0  # silence after which one request is given up
    retry_first_s: float = 0.5
    retry_max_s: float = 10.0
    deadline_s: float = 600.0  # one piece may fail for so long
    min_streams: int = 16  # parallel connections at the start
    max_streams: int = 48  # as many are opened while each doubling makes the transfer faster
    piece_bytes: int = 4 << 20  # of one request of a download; of an upload the central says it

    def __post_init__(self) -> None:
        assert 1 <= self.min_streams <= self.max_streams, "streams are counted from 1"


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a carrier has done so far: payload bytes that arrived, repeats, time in `put`/`get`.

    A repeat is any request after a fault: of a piece, of a whole transfer that begins again, or
    under a new session. Asking whether a commit is over is none.
    """

    num_up: int = 0
    num_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    retries: int = 0
    seconds_up: float = 0.0
    seconds_down: float = 0.0


class Meter:
    """Adds `Transfers` up. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sum = Transfers()

    def add(self, more: Transfers) -> None:
        """Counts `more` in."""
        with self._lock:
            now = self._sum
            self._sum = replace(
                now,
                **{name: getattr(now, name) + getattr(more, name) for name in Transfers.__slots__},
            )

    def read(self) -> Transfers:
        """All so far."""
        with self._lock:
            return self._sum


class Carrier(Protocol):
    """Moves files by content. Both calls may take minutes, say so in the log, and may be repeated.

    Thread-safe, but two `get`s to one path at a time are a fault of the caller.
    """

    def put(self, path: Path, info: PayloadInfo) -> None:
        """Brings the file `path` to the other side; nothing travels that is there already.

        Raises:
            PayloadError: `path` is not what `info` says.
            CentralError: the other side refused it, or gave no answer within the deadline.
            Stopped: somebody asked to stop.
            OSError: `path` cannot be read.
        """

    def get(self, info: PayloadInfo, path: Path) -> None:
        """Leaves the announced bytes, durable, at `path`; until then nothing is visible there.

        Raises:
            PayloadError: other bytes came, twice.
            CentralError: it is not there, or there was no answer within the deadline.
            Stopped: somebody asked to stop.
            OSError: `path` cannot be written (disk full).
        """

    def transfers(self) -> Transfers:
        """What was moved so far."""

    def close(self) -> None:
        """Lets go of what is open."""


def must_fit(path: Path, info: PayloadInfo) -> None:
    """Passes a file of the announced size; its bytes are checked where they arrive.

    Raises:
        PayloadError: another size.
        OSError: it cannot be read.
    """
    size_bytes = path.stat().st_size
    if size_bytes != info.size_bytes:
        raise PayloadError(
            f"{path.name} has {size_bytes} bytes, announced were {info.size_bytes}: write it again"
        )
