"""Sources: documents, always in the same order, piece by piece, with a fingerprint of the bytes.

A source can be read again and again; nothing of it is kept in memory but what a reader holds.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, assert_never

from pww.config.schema import Data
from pww.data.files import find_files, fingerprint, is_packed, line_number, lines, sizes
from pww.data.pieces import Piece, Span, piece_bytes, rule
from pww.data.pydocs import PythonDocs
from pww.errors import DataError

DEFAULT_COLUMN = "text"
ABSENT = object()
"""What a row without the key has under it; a null is a document, an empty one."""


class Source(Protocol):
    """Documents in a fixed order."""

    def fingerprint(self) -> str:
        """SHA-256 over all that decides the documents; cheap beside reading them."""

    def pieces(self) -> tuple[Piece, ...]:
        """All of it, in order; cheap too."""

    def read(self, spans: Sequence[Span]) -> Iterator[str]:
        """The documents of these spans, empty ones too; each call starts again."""


def open_source(data: Data, *, project: Path) -> Source:
    """The source that `data` names; relative roots are below `project`.

    Raises:
        DataError: its files are not there.
    """
    if data.column != DEFAULT_COLUMN and data.kind in ("pydocs", "text"):
        raise DataError(
            f"data.column={data.column} has no meaning for data.kind={data.kind};"
            f" set it to {DEFAULT_COLUMN}"
        )
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
            paths = find_files(data.files, roots=data.roots, project=project)
            return JsonLineFiles(paths, column=data.column)
        case "parquet":
            from pww.data.parquet import ParquetFiles

            paths = find_files(data.files, roots=data.roots, project=project)
            return ParquetFiles(paths, column=data.column)
        case other:
            assert_never(other)


def documents(source: Source) -> Iterator[str]:
    """Every document of a source."""
    for piece in source.pieces():
        yield from source.read(piece.spans)


class TextFiles:
    """Plain UTF-8 files (`.gz`, `.zst` too): each is one document."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def fingerprint(self) -> str:
        """SHA-256 over every file's."""
        return fingerprint("text", self._paths)

    def pieces(self) -> tuple[Piece, ...]:
        """Whole files."""
        each = sizes(self._paths)
        return rule(((Span(i), size) for i, size in enumerate(each)), total_bytes=sum(each))

    def read(self, spans: Sequence[Span]) -> Iterator[str]:
        """One document a file.

        Raises:
            DataError: a file is not UTF-8, or cannot be read.
        """
        for span in spans:
            path = self._paths[span.file]
            yield "".join(_decode(line, path, nth) for nth, line in enumerate(lines(path), 1))


class JsonLineFiles:
    """Files of one JSON object a line (`.gz`, `.zst` too), of which one key is a document.

    Blank lines are none; a null is an empty document, as it is in Parquet.
    """

    def __init__(self, paths: Sequence[Path], *, column: str = DEFAULT_COLUMN) -> None:
        self._paths = tuple(paths)
        self._column = column

    def fingerprint(self) -> str:
        """SHA-256 over every file's, and the name of the key."""
        return fingerprint(f"jsonl {self._column}", self._paths)

    def pieces(self) -> tuple[Piece, ...]:
        """Packed files whole, the others in runs of lines."""
        return rule(self._spans(), total_bytes=sum(self._sizes))

    def read(self, spans: Sequence[Span]) -> Iterator[str]:
        """One document a line.

        Raises:
            DataError: a line is not a JSON object with a string or null under the key, or a file
                cannot be read.
        """
        for span in spans:
            path = self._paths[span.file]
            for nth, line in enumerate(lines(path, span.start, span.stop), 1):
                if line.strip():
                    try:
                        yield _text_of(_decode(line, path, nth), path, nth, self._column)
                    except DataError:
                        if not span.start:
                            raise
                        number = line_number(path, span.start, nth)
                        yield _text_of(_decode(line, path, number), path, number, self._column)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return sizes(self._paths)

    def _spans(self) -> Iterable[tuple[Span, int]]:
        step = piece_bytes(sum(self._sizes))
        for i, (path, size) in enumerate(zip(self._paths, self._sizes, strict=True)):
            if is_packed(path) or size <= step:
                yield Span(i), size
                continue
            for start in range(0, size, step):
                stop = min(start + step, size)
                yield Span(i, start, stop), stop - start


def _text_of(line: str, path: Path, number: int, column: str) -> str:
    """The document of one line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise DataError(f"{path} line {number} is not JSON: {fault}") from None
    text = row.get(column, ABSENT) if isinstance(row, dict) else ABSENT
    if text is None:
        return ""
    if not isinstance(text, str):
        keys = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise DataError(
            f"{path} line {number} has no string under {column!r} (it has {keys}); data.column"
            " names the key that holds the text"
        )
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        half = ascii(text[fault.start])
        raise DataError(
            f"{path} line {number}: {half} in {column!r} is half a character (a lone surrogate)"
        ) from None
    return text


def _decode(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as fault:
        raise DataError(
            f"{path} line {number} is not UTF-8: byte 0x{line[fault.start]:02x} in column"
            f" {fault.start + 1}; convert it, for instance with `iconv -t UTF-8`"
        ) from None
