"""What an unfinished build keeps: finished pieces, so that a build that was cut off goes on.

A folder beside the entry. `done.jsonl` has one line for each finished piece, added after its files
are durable; a line that a crash cut counts as absent, and tokens are compared with their
SHA-256 before they are used again. The entry's name stands for the text, the tokenizer and every
setting, so nothing here can belong to another corpus.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from pww.data.manifest import TOOL
from pww.data.pieces import Piece
from pww.data.shards import Dtype, Tokens
from pww.data.tokenizer import TextTokenizer
from pww.data.work import Record, Stream, Text, Tokenised, stem_file
from pww.folder import sync_folder, write_durably

SUFFIX = ".pieces"
READ_TOKENS = 1 << 22

_log = logging.getLogger(__name__)


class Line(Record):
    """One finished piece: counted, or tokenised."""

    piece: int
    text: Text | None = None
    tokenised: Tokenised | None = None


class Kept:
    """The pieces of one build."""

    def __init__(self, folder: Path, pieces: Sequence[Piece]) -> None:
        """Takes up what is there, if it was ruled into the same pieces."""
        self.folder = folder
        self.texts: dict[int, Text] = {}
        self._tokenised: dict[int, Tokenised] = {}
        ruling = {"tool": TOOL, "pieces": [asdict(piece) for piece in pieces]}
        mark = hashlib.sha256(json.dumps(ruling).encode()).hexdigest().encode()
        self._log = folder / "done.jsonl"
        try:
            same = (folder / "ruling").read_bytes() == mark
        except FileNotFoundError:
            same = False
        if not same:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_durably(folder / "ruling", mark)
            return
        self._read()

    def add(self, piece: int, done: Text | Tokenised) -> None:
        """Notes a finished piece; its files are durable already."""
        match done:
            case Text():
                line = Line(piece=piece, text=done)
                self.texts[piece] = done
            case Tokenised():
                line = Line(piece=piece, tokenised=done)
                self._tokenised[piece] = done
                sync_folder(self.folder)
        with self._log.open("ab") as file:
            file.write(line.model_dump_json(exclude_none=True).encode() + b"\n")

    def tokenizer(self) -> TextTokenizer | None:
        """The one that the build has trained or read already; None: not yet."""
        path = self.folder / "tokenizer.json"
        return TextTokenizer(path.read_bytes(), origin=str(path)) if path.exists() else None

    def keep(self, tokenizer: TextTokenizer) -> None:
        """Keeps the tokenizer, for workers and for a build that goes on."""
        write_durably(self.folder / "tokenizer.json", tokenizer.json)

    def tokenised(self, *, tokenizer: str, dtype: Dtype) -> dict[int, Tokenised]:
        """The pieces that need not be tokenised again: same text, same tokenizer, files whole."""
        found = {}
        for piece, done in self._tokenised.items():
            if (
                done.tokenizer == tokenizer
                and done.text == self.texts.get(piece)
                and self._is_whole(self.path(piece, "train"), done.train, dtype)
                and self._is_whole(self.path(piece, "held_out"), done.held_out, dtype)
            ):
                found[piece] = done
            else:
                _log.warning("piece %d of %s is damaged: done again", piece, self.folder)
        self._tokenised = found
        return dict(found)

    def path(self, piece: int, stream: str) -> Path:
        """Where the `train` or `held_out` tokens of a piece are."""
        return stem_file(self.folder / f"{piece:05d}", stream)

    def num_tokens(self, stream: str) -> int:
        """Of all pieces."""
        every = self._tokenised.values()
        return sum((x.train if stream == "train" else x.held_out).num_tokens for x in every)

    def tokens(self, piece: int, stream: str, dtype: Dtype) -> Iterator[Tokens]:
        """A piece's tokens, a few million at a time."""
        path = self.path(piece, stream)
        if not path.exists():
            return
        kind = np.dtype(dtype).newbyteorder("<")
        with path.open("rb") as file:
            while (block := np.fromfile(file, kind, READ_TOKENS)).size:
                yield block

    def _read(self) -> None:
        if not self._log.exists():
            return
        with self._log.open("r+b") as file:
            whole = 0
            for raw in file:
                try:
                    line = Line.model_validate_json(raw)
                except ValidationError:
                    break
                if not raw.endswith(b"\n"):
                    break
                whole += len(raw)
                if line.text is not None:
                    self.texts[line.piece] = line.text
                if line.tokenised is not None:
                    self._tokenised[line.piece] = line.tokenised
            file.truncate(whole)

    def _is_whole(self, path: Path, stated: Stream, dtype: Dtype) -> bool:
        if not stated.num_tokens:
            return not path.exists()
        try:
            if path.stat().st_size != stated.num_tokens * np.dtype(dtype).itemsize:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == stated.sha256
        except FileNotFoundError:
            return False
