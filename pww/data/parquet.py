"""Parquet files: one column of text, row group by row group, through pyarrow (an extra)."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pww.data.files import fingerprint
from pww.data.pieces import Piece, Span, rule
from pww.errors import DataError

BATCH_ROWS = 1024


class ParquetFiles:
    """Files of Parquet, of which one column is the documents; a null is an empty document."""

    def __init__(self, paths: Sequence[Path], *, column: str) -> None:
        """Loads the reader.

        Raises:
            DataError: pyarrow is not installed.
        """
        self._paths = tuple(paths)
        self._column = column
        try:
            import pyarrow.parquet
        except ImportError as fault:
            raise DataError(
                f"data.kind=parquet needs pyarrow, which cannot be imported ({fault});"
                " pip install 'pww[parquet]'"
            ) from None
        self._arrow: Any = pyarrow

    def fingerprint(self) -> str:
        """SHA-256 over every file's, and the name of the column."""
        return fingerprint(f"parquet {self._column}", self._paths)

    def pieces(self) -> tuple[Piece, ...]:
        """Runs of row groups; a span counts in them.

        Raises:
            DataError: a file is not Parquet, or has no such column of text.
        """
        return rule(self._groups, total_bytes=sum(size for _, size in self._groups))

    def read(self, spans: Sequence[Span]) -> Iterator[str]:
        """One document a row.

        Raises:
            DataError: a file cannot be read, or a value is not UTF-8.
        """
        for span in spans:
            path = self._paths[span.file]
            try:
                with self._opened(path) as file:
                    for batch in file.iter_batches(
                        BATCH_ROWS, row_groups=[span.start], columns=[self._column]
                    ):
                        for text in batch.column(0).to_pylist():
                            yield text or ""
            except (OSError, self._arrow.ArrowException, UnicodeDecodeError) as fault:
                raise DataError(f"cannot read {path}: {_line(fault)}") from None

    @cached_property
    def _groups(self) -> list[tuple[Span, int]]:
        groups = []
        for i, path in enumerate(self._paths):
            try:
                with self._opened(path) as file:
                    self._check(path, file.schema_arrow)
                    meta = file.metadata
                    for group in range(meta.num_row_groups):
                        size = meta.row_group(group).total_byte_size
                        groups.append((Span(i, group, group + 1), size))
            except (OSError, self._arrow.ArrowException) as fault:
                raise DataError(f"cannot read {path}: {_line(fault)}") from None
        return groups

    def _opened(self, path: Path) -> Any:
        return self._arrow.parquet.ParquetFile(path)

    def _check(self, path: Path, schema: Any) -> None:
        types = self._arrow.types
        if schema.names.count(self._column) != 1:
            raise DataError(
                f"{path} has no column {self._column!r} (it has {schema.names}); data.column names"
                " the one that holds the text"
            )
        kind = schema.field(self._column).type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            raise DataError(
                f"{path}: column {self._column!r} holds {kind}, not text; data.column names the one"
                " that does"
            )


def _line(fault: BaseException) -> str:
    """One line for a person."""
    return " ".join(str(fault).split())
