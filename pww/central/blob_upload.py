"""One object on its way in: a piece is all there or missing; a repeated one replaces its elder.

A client whose connection broke sends a piece again while the central may still hold the first try.
Only the newest writer of a piece may write, so that a try that was given up cannot reach the disk
after the piece was finished. Whether the bytes are right is decided by the BLAKE3 of the whole; if
they are not, `check` says which pieces are to blame.
"""

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pww.errors import PwwError
from pww.transport.blob_wire import ABSENT, BEGIN_AGAIN, DAMAGED, FULL
from pww.transport.piece_file import PieceFile, Unfinished, WrongDigest

Data = bytes | NDArray[np.uint8]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BlobFault(PwwError):
    """The store cannot do what was asked; `status` says it to a program."""

    def __init__(self, message: str, *, status: int) -> None:
        self.status = status
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps `status` when the error travels from rank to rank."""
        return partial(type(self), status=self.status), (str(self),)


class Upload:
    """An upload of one replica; it goes on after a restart of either side. Thread-safe."""

    def __init__(self, base: Path, *, digest: str, size_bytes: int, piece_bytes: int) -> None:
        """Goes on with what is at `base`.

        Raises:
            OSError: it cannot be made.
        """
        self._file = PieceFile(base, digest=digest, size_bytes=size_bytes, piece_bytes=piece_bytes)
        self.digest, self.size_bytes, self.piece_bytes = digest, size_bytes, piece_bytes
        self._lock = threading.Lock()
        self._writers: dict[int, PieceWriter] = {}
        self._open = True

    def missing(self) -> list[int]:
        """The pieces that are still to come."""
        return self._file.missing()

    def writer(self, number: int) -> "PieceWriter | None":
        """Who takes in a piece, instead of whoever did so before; None if it is there already.

        Raises:
            BlobFault: there is no such piece, or the upload is over.
        """
        self._must_have(number)
        with self._lock:
            if not self._open:
                raise _over()
            if self._file.has(number):
                return None
            self._replace(number)
            start, stop = self._file.span(number)
            self._writers[number] = PieceWriter(self, number, start, stop - start)
            return self._writers[number]

    def write(self, writer: "PieceWriter", data: Data, offset: int) -> None:
        """Writes for the newest writer of a piece. Raises as `PieceWriter.write`."""
        with writer.lock:
            if not writer.newest:
                raise self._not_newest(writer)
            with no_room():
                self._file.write(data, offset)

    def finish(self, writer: "PieceWriter") -> None:
        """Counts a piece that is all there. Raises as `PieceWriter.finish`."""
        with self._lock:
            if not writer.newest:
                raise self._not_newest(writer)
            with no_room():
                self._file.finish(writer.number)
            self._replace(writer.number)

    def drop(self, writer: "PieceWriter") -> None:
        """Forgets a writer whose piece did not come."""
        with self._lock:
            if self._writers.get(writer.number) is writer:
                self._replace(writer.number)

    def advance(self) -> None:
        """Hashes what can be hashed by now; for a thread that has nothing better to do."""
        try:
            self._file.advance()
        except OSError:  # closed meanwhile, or a disk that fails: `publish` meets it again
            return

    def check(self, number: int, crc: int) -> None:
        """Returns if a piece is there and has this CRC-32C.

        Raises:
            BlobFault: it has not, and is missing from now on; there is no such piece; or the upload
                is over.
            OSError: the disk failed.
        """
        self._must_have(number)
        with _unless_over():
            right = self._file.check(number, crc)
        if not right:
            raise BlobFault(f"piece {number} has not CRC-32C {crc:08x} here", status=DAMAGED)

    def publish(self, path: Path) -> None:
        """Makes the object `path`, if it is complete and right.

        Raises:
            BlobFault: pieces are missing; or the bytes are others, and are kept to be checked; or
                the upload is over.
            OSError: the disk failed; it can be tried again.
        """
        with _unless_over():
            try:
                self._file.publish(path, keep=True)
            except Unfinished as fault:
                raise BlobFault(f"{fault}: begin again", status=BEGIN_AGAIN) from fault
            except WrongDigest as fault:
                raise BlobFault(f"{fault}: check its pieces", status=DAMAGED) from fault
        self._end()

    def discard(self) -> None:
        """Forgets all of it."""
        self._end()
        self._file.discard()

    def close(self) -> None:
        """Lets go of the files; the upload goes on in another process."""
        self._end()
        self._file.close()

    def _must_have(self, number: int) -> None:
        if number >= self._file.num_pieces:
            raise BlobFault(
                f"piece {number} of an object of {self._file.num_pieces} pieces: begin again",
                status=ABSENT,
            )

    def _end(self) -> None:
        with self._lock:
            self._open = False
            for number in list(self._writers):
                self._replace(number)

    def _replace(self, number: int) -> None:
        """Whoever takes a piece in writes no more of it, nor is in the middle of a write."""
        old = self._writers.pop(number, None)
        if old is not None:
            with old.lock:
                old.newest = False

    def _not_newest(self, writer: "PieceWriter") -> BlobFault:
        if not self._open:
            return _over()
        return BlobFault(
            f"piece {writer.number} was begun again by a later request: this one is over",
            status=BEGIN_AGAIN,
        )


class PieceWriter:
    """Takes in one piece, in any number of bites."""

    def __init__(self, upload: Upload, number: int, start: int, size_bytes: int) -> None:
        self._upload, self.number, self.size_bytes = upload, number, size_bytes
        self._start, self._got = start, 0
        self.lock, self.newest = threading.Lock(), True
        """Pieces of an upload are written beside each other, and each by one writer."""

    def write(self, bites: Sequence[Data]) -> None:
        """The next bytes.

        Raises:
            BlobFault: more than the piece has, no room on the disk, or not the newest writer.
            OSError: the disk failed.
        """
        for data in bites:
            if self._got + len(data) > self.size_bytes:
                raise self._damaged(f"more than its {self.size_bytes} bytes")
            self._upload.write(self, data, self._start + self._got)
            self._got += len(data)

    def finish(self) -> None:
        """Counts the piece, if it is all there.

        Raises:
            BlobFault: it is not, or as `write`; the piece is still missing.
            OSError: the disk failed.
        """
        if self._got != self.size_bytes:
            raise self._damaged(f"{self._got} bytes, not {self.size_bytes}")
        self._upload.finish(self)

    def drop(self) -> None:
        """Gives up; nothing of it counts."""
        self._upload.drop(self)

    def _damaged(self, what: str) -> BlobFault:
        return BlobFault(f"piece {self.number} came with {what}: send it again", status=DAMAGED)


@contextmanager
def no_room() -> Iterator[None]:
    """Turns a full disk into the answer that keeps the client waiting for room.

    Raises:
        BlobFault: the disk is full.
    """
    try:
        yield
    except OSError as fault:
        if fault.errno not in NO_ROOM:
            raise
        raise BlobFault(
            f"the central's disk is full ({fault.strerror}): free some space there; nothing is "
            "lost, and the transfer goes on by itself",
            status=FULL,
        ) from fault


@contextmanager
def _unless_over() -> Iterator[None]:
    """As `no_room`, and tells a file that was closed meanwhile from a disk that failed."""
    try:
        with no_room():
            yield
    except OSError as fault:
        if fault.errno != errno.EBADF:
            raise
        raise _over() from fault


def _over() -> BlobFault:
    return BlobFault("this upload is over or was collected: begin again", status=BEGIN_AGAIN)
