"""How the rows of a run end when it goes on: read from the end of the file, and no further.

A run of months has rows by the gigabyte; what a resumed one needs of them lies within its last
phase and evaluation. Memory: a block and a row.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pww.folder import sync_folder

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Left:
    """What is told already, and need not be told again."""

    round: int = -1  # of the last evaluation
    state_hash: str = ""  # its theta's
    delta: str = ""  # of the last outer row


def take_back(path: Path, *, after: int) -> Left:
    """Drops the train rows of steps `after` this one, of a phase that was cut off; what is left.

    Its steps are done again. Nothing is written where there are none; a crash leaves the file as it
    was or without them. A disk that refuses is warned of, and the rows stay.
    """
    try:
        with path.open("rb") as file:
            left, start, end = _looked(file, after)
            if start < end:
                _copy(file, path, start, after)
    except FileNotFoundError:
        return Left()
    except OSError as fault:
        log.warning("rows of a phase that was cut off stay in %s: %s", path.name, fault)
        return Left()
    return left


def _looked(file: BinaryIO, after: int) -> tuple[Left, int, int]:
    """What is left, where the first row to be dropped begins, and where the file ends."""
    end = start = file.seek(0, os.SEEK_END)
    found: dict[str, dict[str, Any]] = {}
    for at, line in _backwards(file, end):
        row = _row(line)
        split = row.get("split")
        if _is_later(row, after):
            start = at
        elif split in ("train", "eval", "outer"):
            found.setdefault(split, row)
            if len(found) == 3:
                break
    evaluated, outer = found.get("eval", {}), found.get("outer", {})
    left = Left(
        _number(evaluated, "round"),
        str(evaluated.get("state_hash", "")),
        str(outer.get("delta", "")),
    )
    return left, start, end


def _backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines of the file, its last one first, and where each begins."""
    rest = b""
    while end:
        begin = max(0, end - BLOCK_BYTES)
        file.seek(begin)
        block = file.read(end - begin) + rest
        lines = block.splitlines(keepends=True)
        at = begin + len(block)
        for line in reversed(lines[1:]):
            at -= len(line)
            yield at, line
        rest, end = lines[0], begin
    if rest:
        yield 0, rest


def _copy(file: BinaryIO, path: Path, start: int, after: int) -> None:
    """Replaces the file by one without the rows that begin at `start` or later and are to go."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as new:
            file.seek(0)
            while (left := start - file.tell()) > 0:
                new.write(file.read(min(left, BLOCK_BYTES)))
            for line in file:
                if not _is_later(_row(line), after):
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _is_later(row: dict[str, Any], after: int) -> bool:
    return row.get("split") == "train" and _number(row, "step") > after


def _number(row: dict[str, Any], key: str) -> int:
    """-1 where there is none: somebody else's row stays."""
    value = row.get(key)
    return value if isinstance(value, int) else -1


def _row(line: bytes) -> dict[str, Any]:
    """A line's row; {} for what a crash tore, or nobody of ours wrote."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
