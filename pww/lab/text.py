"""Text for the lab's model: pieces with their authors, and characters as numbers.

Tiny Shakespeare where it is found; else the language reference that Python itself brings, so that
a fresh clone has something to train on. Of either the last tenth is held out.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import assert_never

import torch

from pww.config.paths import PROJECT
from pww.config.schema.lab import TextTask
from pww.data.files import find_files
from pww.data.pydocs import PythonDocs
from pww.data.sources import documents
from pww.errors import DataError

log = logging.getLogger(__name__)

VOCABULARY = "\n" + "".join(chr(code) for code in range(ord(" "), ord("~") + 1))
"""The 96 characters of plain text: one vocabulary, so one size of model, for every text."""
UNKNOWN = "?"
FILE = "tinyshakespeare/input.txt"
MAX_CHARACTERS = 1_200_000
"""Of the documentation, about as much as there is of Shakespeare."""
HELD_OUT = 0.1
_CODES = {ord(character): number for number, character in enumerate(VOCABULARY)}


@dataclass(frozen=True, slots=True)
class Piece:
    """A speech or a topic."""

    author: str
    text: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text in two: its last part is for evaluation."""

    name: str
    train: tuple[Piece, ...]
    held_out: torch.Tensor  # uint8


def load(task: TextTask, *, project: Path = PROJECT) -> Corpus:
    """The text that `task` names; with `auto` what there is.

    Raises:
        DataError: it is not there.
    """
    roots = tuple(task.roots)
    match task.text:
        case "pydocs":
            return _documentation()
        case "tinyshakespeare":
            return _shakespeare(find_files((FILE,), roots=roots, project=project)[0])
        case "auto":
            try:
                (path,) = find_files((FILE,), roots=roots, project=project)
            except DataError:
                log.warning(
                    "no %s in %s: the documentation of Python is used instead (task.text=pydocs)",
                    FILE, " or ".join(roots),
                )  # fmt: skip
                return _documentation()
            return _shakespeare(path)
        case _:
            assert_never(task.text)


def encoded(text: str) -> torch.Tensor:
    """Each character's number, as uint8."""
    unknown = _CODES[ord(UNKNOWN)]
    plain = text.expandtabs(4).replace("\r\n", "\n")
    return torch.tensor([_CODES.get(ord(c), unknown) for c in plain], dtype=torch.uint8)


def speeches(text: str) -> Iterator[Piece]:
    """Blocks between empty lines; one that begins with `NAME:` is that speaker's."""
    author = ""
    for block in text.split("\n\n"):
        first = block.lstrip("\n").partition("\n")[0]
        if first.endswith(":"):
            author = first[:-1]
        yield Piece(author, block + "\n\n")


@lru_cache(maxsize=1)
def _shakespeare(path: Path) -> Corpus:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as fault:
        raise DataError(f"cannot read {path}: {fault}; use task.text=pydocs") from None
    return _parted("tinyshakespeare", tuple(speeches(text)))


@lru_cache(maxsize=1)
def _documentation() -> Corpus:
    pieces: list[Piece] = []
    left = MAX_CHARACTERS
    for text in documents(PythonDocs()):
        pieces.append(Piece(text.partition("\n")[0], text[:left]))
        left -= len(text)
        if left <= 0:
            break
    return _parted("pydocs", tuple(pieces))


def _parted(name: str, pieces: Sequence[Piece]) -> Corpus:
    """The first pieces, until nine tenths of the characters, and the rest."""
    total = sum(len(piece.text) for piece in pieces)
    taken = count = 0
    while count < len(pieces) and taken < (1 - HELD_OUT) * total:
        taken += len(pieces[count].text)
        count += 1
    rest = "".join(piece.text for piece in pieces[count:])
    if not rest:
        raise DataError(f"text {name}: {len(pieces)} pieces leave nothing to hold out")
    return Corpus(name, tuple(pieces[:count]), encoded(rest))
