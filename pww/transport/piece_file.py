"""A file that comes in pieces, in any order: resumed after a crash, and whole or not there.

    NAME.part   the bytes, at their final offsets
    NAME.done   what it will be, and then the numbers of the pieces that are in it, as they come

The BLAKE3 of the whole is computed beside the transfer, piece by piece in order, so that little is
left to do at the end. What survives a killed process: all pieces that were finished. A machine that
loses power may lose some of their bytes: then the digest is wrong. `check` finds out which pieces
are, `discard` gives all of them up. Disk writes are in `write`, `finish` and `check` only.
"""

import errno
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from pww.errors import PayloadError
from pww.folder import sync_folder
from pww.transport.digest import new_digest
from pww.transport.memory import aligned_buffer

CHUNK = 1 << 20
"""What is read at once for hashing: fits a core's cache."""
Buffer = memoryview | bytes | bytearray | NDArray[np.uint8]
_NUMBER = struct.Struct("<I")
MAX_PIECES = 1 << 32


class WrongDigest(PayloadError):
    """All pieces came, but together they are not the announced bytes."""


class Unfinished(PayloadError):
    """Pieces are missing."""


class PieceFile:
    """A file of `size_bytes` with digest `digest` in the making. Thread-safe."""

    def __init__(self, base: Path, *, digest: str, size_bytes: int, piece_bytes: int) -> None:
        """Goes on with what an earlier process left at `base`, if it was the same file.

        Raises:
            OSError: it cannot be made or read.
        """
        self.size_bytes, self.piece_bytes = size_bytes, piece_bytes
        self.num_pieces = -(-size_bytes // piece_bytes)
        assert self.num_pieces <= MAX_PIECES, "sizes are bounded where they come in"
        self._part, self._journal = base.with_name(f"{base.name}.part"), done_file(base)
        self._digest, self._lock = digest, threading.Lock()
        self._hashing, self._hash, self._hashed = threading.Lock(), new_digest(), 0
        self._buffer = aligned_buffer(min(CHUNK, piece_bytes))  # who is hashing has it
        head = f"{digest} {size_bytes} {piece_bytes}\n".encode()
        self._head, self._log_bytes = head, 0
        self._done, self._right, self._renamed = self._read(head), False, False
        if not self._done:
            for path in (self._journal, self._part):  # the journal first: it claims the bytes
                path.unlink(missing_ok=True)
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._fd, size_bytes)
            self._log = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._rewrite()
            except BaseException:
                os.close(self._log)
                raise
        except BaseException:
            os.close(self._fd)
            raise

    def _read(self, head: bytes) -> set[int]:
        """The pieces that an earlier process finished; none if it made another file."""
        try:
            if self._part.stat().st_size != self.size_bytes:
                return set()
            found = self._journal.read_bytes()
        except FileNotFoundError:
            return set()
        if not found.startswith(head):
            return set()
        rows = found[len(head) :]
        rows = rows[: len(rows) // _NUMBER.size * _NUMBER.size]  # the last may be torn
        return {n for (n,) in _NUMBER.iter_unpack(rows) if n < self.num_pieces}

    def _rewrite(self) -> None:
        """Makes the journal what is finished; a crash in the middle leaves fewer pieces in it."""
        os.ftruncate(self._log, 0)
        self._log_bytes = 0
        rows = self._head + b"".join(map(_NUMBER.pack, sorted(self._done)))
        _write_all(self._log, rows, 0, self._journal)
        self._log_bytes = len(rows)

    def span(self, number: int) -> tuple[int, int]:
        """First byte of a piece, and the one after its last."""
        start = number * self.piece_bytes
        return start, min(start + self.piece_bytes, self.size_bytes)

    def missing(self) -> list[int]:
        """The pieces that are still to come, in order."""
        with self._lock:
            return [n for n in range(self.num_pieces) if n not in self._done]

    def has(self, number: int) -> bool:
        """Whether a piece is finished."""
        with self._lock:
            return number in self._done

    def write(self, data: Buffer, offset: int) -> None:
        """Puts bytes of a piece in their place; they count when the piece is finished.

        Raises:
            OSError: they could not be written (disk full).
        """
        _write_all(self._fd, data, offset, self._part)

    def finish(self, number: int) -> None:
        """Counts a piece whose bytes are all written.

        Raises:
            OSError: that could not be written down; the piece is still missing.
        """
        with self._lock:
            if number in self._done:
                return
            _write_all(self._log, _NUMBER.pack(number), self._log_bytes, self._journal)
            self._log_bytes += _NUMBER.size
            self._done.add(number)

    def advance(self) -> None:
        """Hashes what can be hashed by now; returns at once if another thread is at it."""
        if self._hashing.acquire(blocking=False):
            try:
                self._hash_on()
            finally:
                self._hashing.release()

    def _hash_on(self) -> None:
        try:
            while self._hashed < self.num_pieces and self.has(self._hashed):
                for bite in self._bites(self._hashed):
                    self._hash.update(bite)
                self._hashed += 1
        except OSError:  # some of a piece is in it, and would be once more
            self._hash, self._hashed = new_digest(), 0
            raise

    def _bites(self, number: int) -> Iterator[memoryview]:
        """The bytes of a piece, for who has `_hashing`: one bite lasts until the next."""
        start, stop = self.span(number)
        while start < stop:
            view = self._buffer[: stop - start]
            got = os.preadv(self._fd, [view], start)
            if got == 0:
                raise OSError(f"{self._part.name} was cut short by somebody else")
            yield view[:got]
            start += got

    def check(self, number: int, crc: int) -> bool:
        """Whether a piece is there and has this CRC-32C; one that has another is missing again.

        Of a whole that was found right no piece is: it may be visible already.

        Raises:
            OSError: it could not be read, or that it is missing not be written down.
        """
        with self._hashing:
            if not self.has(number):
                return False
            found = 0
            for bite in self._bites(number):
                found = google_crc32c.extend(found, np.frombuffer(bite, dtype=np.uint8))
            if found != crc and not self._right:
                self._hash, self._hashed = new_digest(), 0
                with self._lock:
                    self._done.discard(number)
                    self._rewrite()
            return found == crc

    def publish(self, path: Path, *, keep: bool = False) -> None:
        """Makes the file visible as `path`, durably, if it is complete and the right one.

        Raises:
            Unfinished: pieces are missing.
            WrongDigest: other bytes; nothing is visible, and all is forgotten, or with `keep`
                waits for a `check` of its pieces.
            OSError: it could not be made durable, or was closed meanwhile; it can be tried again.
        """
        with self._hashing:
            self._hash_on()
            if self._hashed < self.num_pieces:
                raise Unfinished(
                    f"{len(self.missing())} pieces of {self._digest[:16]}… are missing"
                )
            found = self._hash.copy().hexdigest()
            self._right = found == self._digest
        if not self._right:
            if not keep:
                self.discard()
            raise WrongDigest(
                f"{self.size_bytes} bytes with BLAKE3 {self._digest} were announced, those that "
                f"came have {found}"
            )
        if not self._renamed:
            os.fsync(self._fd)
            with self._lock:
                if self._fd < 0:  # another process or upload may have begun a file of this name
                    raise OSError(errno.EBADF, "closed while it was published", str(self._part))
                self._part.replace(path)
                self._renamed = True  # a folder that cannot be synced now may be later
        sync_folder(path.parent)
        self.close()
        self._journal.unlink(missing_ok=True)

    def discard(self) -> None:
        """Forgets all that came; safe to call twice."""
        self.close()
        self._journal.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the files; what was finished stays for another process. Safe to call twice."""
        with self._lock:
            for fd in (self._fd, self._log):
                if fd >= 0:
                    with suppress(OSError):
                        os.close(fd)
            self._fd = self._log = -1


def done_file(base: Path) -> Path:
    """The journal beside a file in the making."""
    return base.with_name(f"{base.name}.done")


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as half-open runs, which stay few when pieces come nearly in order."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def _write_all(fd: int, data: Buffer, offset: int, path: Path) -> None:
    """A `pwrite` may write less than it was given, before a full disk."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    try:
        while view:
            wrote = os.pwrite(fd, view, offset)
            view, offset = view[wrote:], offset + wrote
    except OSError as why:
        raise OSError(why.errno, why.strerror, str(path)) from why
