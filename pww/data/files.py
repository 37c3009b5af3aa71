"""Files of a corpus: found below the roots, unpacked while they are read, fingerprinted.

`.gz` and `.zst` are unpacked; several streams one after the other in a file count as one.
"""

import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from pww.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Buffer

PACKED = (".gz", ".zst")
"""Ends of names whose files can only be read from their start."""
BUFFER_BYTES = 1 << 20
EMPTY = "the file has 0 bytes, and even no text at all has more when it is packed"


def find_files(globs: Sequence[str], *, roots: Sequence[str], project: Path) -> tuple[Path, ...]:
    """The files of every glob below the first root that has any, each once, sorted by name.

    Raises:
        DataError: a glob matches nothing, and the message names every folder that was looked in; or
            one text is there packed and unpacked, and would be read twice.
    """
    if not globs:
        raise DataError("data.files=[] names no file; give at least one glob, such as '*.txt'")
    folders = [project / Path(root).expanduser() for root in roots if root]
    found: dict[Path, str] = {}
    for pattern in globs:
        for folder in folders:
            names = glob.glob(pattern, root_dir=folder, recursive=True)
            files = [(folder / name, name) for name in names if (folder / name).is_file()]
            if files:
                found.update((path.resolve(), name) for path, name in files)
                break
        else:
            looked = (
                ", ".join(str(folder) for folder in folders) or "no folder (data.roots is empty)"
            )
            raise DataError(
                f"no file matches {pattern!r} (data.files); looked in {looked};"
                " set data.roots, or the environment variable PWW_DATA, to the folder that holds it"
            )
    _check_once(sorted(found.values()))
    return tuple(sorted(found, key=lambda path: (found[path], path)))


def _check_once(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        text = name.removesuffix(Path(name).suffix) if is_packed(Path(name)) else name
        other = seen.setdefault(text, name)
        if other != name:
            raise DataError(
                f"{other!r} and {name!r} (data.files) differ only in how they are packed, so every"
                " document of them would be there twice; remove one of them, or name one kind in"
                " data.files, such as '*.json.gz'"
            )


def is_packed(path: Path) -> bool:
    """Whether the file's bytes are not its text."""
    return path.suffix in PACKED


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked.

    Raises:
        DataError: it cannot be opened or, while the caller reads, cannot be read or unpacked.
    """
    try:
        with path.open("rb", buffering=BUFFER_BYTES) as raw:
            match path.suffix:
                case ".gz":
                    if not os.fstat(raw.fileno()).st_size:  # gzip takes it for text of no bytes
                        raise EOFError(EMPTY)
                    with gzip.GzipFile(fileobj=raw) as packed, _buffered(packed) as file:
                        yield file
                case ".zst":
                    with _buffered(_Frames(raw)) as file:
                        yield file
                case _:
                    yield raw
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as fault:
        raise DataError(f"cannot read {path}: {fault}") from None


def lines(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    r"""Raw lines with their ends (`\n` only): those that begin in the bytes `[start, stop)`.

    Raises:
        DataError: the file cannot be read.
    """
    with opened(path) as file:
        at = start
        if start:
            file.seek(start - 1)  # a line begins at `start` only after the end of another one
            at = start - 1 + len(file.readline())
        if stop is None:
            yield from file
            return
        while at < stop:
            line = file.readline()
            if not line:
                return
            at += len(line)
            yield line


def line_number(path: Path, start: int, nth: int) -> int:
    """The number, from 1, of the `nth` line that begins at byte `start` or later."""
    before = 0
    if start:
        with path.open("rb") as file:
            left = start - 1
            while left and (block := file.read(min(left, BUFFER_BYTES))):
                before += block.count(b"\n")
                left -= len(block)
        before += 1  # the line that `start - 1` is in
    return before + nth


def sizes(paths: Sequence[Path]) -> tuple[int, ...]:
    """Bytes of every file as it is on disk.

    Raises:
        DataError: a file is not there.
    """
    found = []
    for path in paths:
        try:
            found.append(path.stat().st_size)
        except OSError as fault:
            raise DataError(f"cannot read {path}: {fault.strerror}") from None
    return tuple(found)


def fingerprint(kind: str, paths: Sequence[Path]) -> str:
    """SHA-256 over `kind` and the files' own, in order; names do not count. On all cores.

    Raises:
        DataError: a file cannot be read.
    """
    total = hashlib.sha256(kind.encode())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # hashing lets go of the lock
        for digest in pool.map(_digest, paths):
            total.update(digest)
    return total.hexdigest()


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as fault:
        raise DataError(f"cannot read {path}: {fault.strerror}") from None


class _Frames(io.RawIOBase):
    """The content of zstandard frames; zstandard's reader takes a cut file for a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frames = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame = self._frames.decompressobj()
        self._inside = False
        self._empty = True
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: "Buffer", /) -> int:
        """The next bytes; 0 at the end.

        Raises:
            EOFError: the file ends inside a frame, or before the first.
        """
        while not self._left:
            block = self._frame.unused_data if self._frame.eof else b""
            block = block or self._raw.read(BUFFER_BYTES)
            if not block:
                if self._inside:
                    raise EOFError("the file ends in the middle of its packed text")
                if self._empty:
                    raise EOFError(EMPTY)
                return 0
            self._empty = False
            if self._frame.eof:
                self._frame = self._frames.decompressobj()
            self._left = memoryview(self._frame.decompress(block))
            self._inside = not self._frame.eof
        target = memoryview(buffer).cast("B")
        num = min(len(target), len(self._left))
        target[:num] = self._left[:num]
        self._left = self._left[num:]
        return num


def _buffered(inner: io.RawIOBase | gzip.GzipFile) -> BinaryIO:
    """Line by line at the speed of a plain file."""
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, inner), BUFFER_BYTES))
