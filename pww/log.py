"""Two streams: human lines on the terminal, and append-only JSON lines complete enough to rebuild
a run.

A terminal gets rich's colours; a file or a pipe gets plain lines. Nothing here ever raises into
training.
"""

import functools
import json
import logging
import math
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

QUIET = ("flwr", "alembic", "httpx", "httpcore", "uvicorn", "torchtitan", "sqlalchemy")
"""Libraries that speak at INFO or DEBUG on the root logger."""


@functools.cache
def console() -> Console:
    """The terminal that human lines go to (standard error, so that output can be piped).

    One for log lines and progress bars alike, or they would write over each other.
    """
    return Console(stderr=True, highlight=False)


def setup(*, rank: int = 0, label: str = "") -> None:
    """Sets up the human stream: INFO on rank 0, WARNING elsewhere; `label` says which process
    speaks.
    """
    root = logging.getLogger()
    root.handlers.clear()
    prefix = f"[{label}] " if label else ""
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=console(), show_path=False, markup=False)
        handler.setFormatter(logging.Formatter(f"{prefix}%(message)s", datefmt="%H:%M:%S"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        form = f"%(asctime)s {prefix}%(levelname)s %(message)s"
        handler.setFormatter(logging.Formatter(form, datefmt="%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("pww").setLevel(logging.INFO if rank == 0 else logging.WARNING)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class JsonLines:
    """An append-only file of one JSON object a line; every line reaches the kernel at once.

    A line torn by a crash is ended before the next one is written, so a reader loses that line
    only.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        size = self._file.seek(0, os.SEEK_END)
        self._torn = False
        if size:
            self._file.seek(size - 1)
            self._torn = self._file.read(1) != b"\n"

    def write(self, row: dict[str, object], *, durable: bool = False) -> None:
        """Appends one row; `durable` returns only when it is on disk.

        Raises:
            OSError: the disk is full, say; this row is lost and no other.
        """
        try:
            text = json.dumps(row, allow_nan=False)
        except ValueError:
            text = json.dumps(_spelled(row), allow_nan=False)
        line = text.encode() + b"\n"
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:  # a disk that gets full takes a part first and refuses the rest
            taken = self._file.write(rest)
            self._torn = taken < len(rest)
            rest = rest[taken:]
        if durable:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""JSON has no such numbers: they are written as these words, which `float` takes everywhere."""
MARKS = tuple(f'"{word}"'.encode() for word in NOT_FINITE)


def _spelled(value: object) -> object:
    """The same with a word for each number that is not finite."""
    match value:
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case dict():
            return {key: _spelled(one) for key, one in value.items()}
        case list() | tuple():
            return [_spelled(one) for one in value]
        case _:
            return value


def _numbers(value: object) -> object:
    """What `_spelled` was given."""
    match value:
        case str() if value in NOT_FINITE:
            return float(value)
        case dict():
            return {key: _numbers(one) for key, one in value.items()}
        case list():
            return [_numbers(one) for one in value]
        case _:
            return value


def read_json_lines(path: Path, *, last_bytes: int | None = None) -> list[dict[str, object]]:
    """Every whole row of a file that `JsonLines` wrote; [] when there is none; torn lines are left
    out. With `last_bytes` only the rows in that many bytes at its end. A number that is not finite
    is a float again, and so is a text that is spelled like one.
    """
    if not path.exists():
        return []
    rows = []
    with path.open("rb") as file:
        skip = 0 if last_bytes is None else max(0, path.stat().st_size - last_bytes)
        file.seek(skip)
        lines = file.read().splitlines()
    for line in lines[1:] if skip else lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            if any(mark in line for mark in MARKS):
                row = {key: _numbers(value) for key, value in row.items()}
            rows.append(row)
    return rows
