"""Sources: documents, always in the same order, with a fingerprint of the raw bytes.

A source can be read again and again; nothing of it is kept in memory but what a reader holds.
"""

import glob
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, assert_never, cast

from pww.config.schema import Data
from pww.data.pydocs import PythonDocs
from pww.errors import DataError


class Source(Protocol):
    """Documents in a fixed order."""

    def fingerprint(self) -> str:
        """SHA-256 over all that decides the documents; cheap beside reading them."""

    def documents(self) -> Iterator[str]:
        """Every document, empty ones too; each call starts again."""


def open_source(data: Data, *, project: Path) -> Source:
    """The source that `data` names; relative roots are below `project`.

    Raises:
        DataError: its files are not there.
    """
    match data.kind:
        case "pydocs":
            if data.files:
                raise DataError(
                    f"data.files={list(data.files)} has no meaning for data.kind=pydocs;"
                    " set it to []"
                )
            return PythonDocs()
        case "text":
            return TextFiles(find_files(data.files, roots=data.roots, project=project))
        case "jsonl":
            return JsonLineFiles(find_files(data.files, roots=data.roots, project=project))
        case other:
            assert_never(other)


def find_files(globs: Sequence[str], *, roots: Sequence[str], project: Path) -> tuple[Path, ...]:
    """The files of every glob below the first root that has any, each once, sorted by name.

    Raises:
        DataError: a glob matches nothing; the message names every folder that was looked in.
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
    return tuple(sorted(found, key=lambda path: (found[path], path)))


class TextFiles:
    """Plain UTF-8 files (`.gz` too): each is one document."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def fingerprint(self) -> str:
        """SHA-256 over every file's."""
        return _fingerprint("text", self._paths)

    def documents(self) -> Iterator[str]:
        """One document a file.

        Raises:
            DataError: a file is not UTF-8, or cannot be read.
        """
        for path in self._paths:
            lines = _lines(path)
            yield "".join(_decode(line, path, number) for number, line in enumerate(lines, 1))


class JsonLineFiles:
    """Files of one JSON object a line (`.gz` too): `text` is a document. Blank lines are none."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def fingerprint(self) -> str:
        """SHA-256 over every file's."""
        return _fingerprint("jsonl", self._paths)

    def documents(self) -> Iterator[str]:
        """One document a line.

        Raises:
            DataError: a line is not a JSON object with a string `text`, or a file cannot be read.
        """
        for path in self._paths:
            for number, line in enumerate(_lines(path), 1):
                if line.strip():
                    yield _text_of(_decode(line, path, number), path, number)


def _text_of(line: str, path: Path, number: int) -> str:
    """`text` of one line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise DataError(f"{path} line {number} is not JSON: {fault}") from None
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        keys = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise DataError(f"{path} line {number} has no string under 'text' (it has {keys})")
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        half = ascii(text[fault.start])
        raise DataError(
            f"{path} line {number}: {half} in 'text' is half a character (a lone surrogate)"
        ) from None
    return text


def _lines(path: Path) -> Iterator[bytes]:
    """Raw lines with their ends."""
    try:
        with _open(path) as file:
            yield from file
    except (OSError, EOFError, zlib.error) as fault:
        raise DataError(f"cannot read {path}: {fault}") from None


def _open(path: Path) -> BinaryIO:
    """The file's bytes, unpacked if it is called `.gz`."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as fault:
        raise DataError(
            f"{path} line {number} is not UTF-8: byte 0x{line[fault.start]:02x} in column"
            f" {fault.start + 1}; convert it, for instance with `iconv -t UTF-8`"
        ) from None


def _fingerprint(kind: str, paths: Sequence[Path]) -> str:
    """SHA-256 over the files' own, in order; names do not count."""
    total = hashlib.sha256(kind.encode())
    for path in paths:
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as fault:
            raise DataError(f"cannot read {path}: {fault.strerror}") from None
    return total.hexdigest()
