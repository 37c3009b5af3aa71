"""The work on one piece, the same in this process and in a worker: count it, or make tokens of it.

A piece is read twice: how much text there is in all decides what is held out. The second reading
must see what the first one saw.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pww.data.digest import DocumentsDigest
from pww.data.pieces import Span
from pww.data.shards import Dtype, Tokens
from pww.data.sources import Source
from pww.data.split import Part, split
from pww.data.tokenizer import TextTokenizer
from pww.wire import Count, Digest

BATCH_CHARS = 1 << 19
SAY_CHARS = 1 << 18

Advance = Callable[[int], None]


class Record(BaseModel):
    """Base of what is kept in files and sent between processes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Text(Record):
    """What a piece holds. `value` is its `DocumentsDigest` in hex."""

    num_documents: Count
    num_empty: Count
    num_chars: Count
    value: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]

    @property
    def digest(self) -> DocumentsDigest:
        """Over the documents that have text."""
        return DocumentsDigest(self.num_documents, int(self.value, 16))


class Stream(Record):
    """A file of token ids, little-endian and nothing else; none is written for 0 of them."""

    num_tokens: Count
    sha256: Digest


class Tokenised(Record):
    """A piece's tokens, in two files of the working folder, and the text that they came from."""

    text: Text
    tokenizer: Digest
    train: Stream
    held_out: Stream


class Cut(Record):
    """Where a piece begins, in characters of the corpus, and how the corpus is split."""

    start: Count
    section_chars: Count
    held_out: float
    dtype: Dtype


class Reading:
    """One pass over the documents that have text, with their count and digest so far."""

    def __init__(self, source: Source, spans: Sequence[Span]) -> None:
        self._documents = source.read(spans)
        self._digest = DocumentsDigest()
        self._num_empty = self._num_chars = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._documents:
            if not text.strip():
                self._num_empty += 1
                continue
            self._digest = self._digest.then(text.encode())
            self._num_chars += len(text)
            yield text

    @property
    def text(self) -> Text:
        """What was read."""
        return Text(
            num_documents=self._digest.num,
            num_empty=self._num_empty,
            num_chars=self._num_chars,
            value=f"{self._digest.value:x}",
        )


def count(source: Source, spans: Sequence[Span], advance: Advance) -> Text:
    """What the spans hold; `advance` hears of characters.

    Raises:
        DataError: they cannot be read.
    """
    reading = Reading(source, spans)
    said = 0
    for text in reading:
        said += len(text)
        if said >= SAY_CHARS:
            advance(said)
            said = 0
    advance(said)
    return reading.text


def tokenise(
    source: Source,
    spans: Sequence[Span],
    cut: Cut,
    *,
    tokenizer: TextTokenizer,
    stem: Path,
    advance: Advance,
) -> Tokenised:
    """Writes `<stem>.train` and `<stem>.held_out`, durably; each part ends with the end token.

    Raises:
        DataError: the spans cannot be read, or the tokenizer cannot encode them.
        OSError: the files cannot be written; there are none then.
    """
    reading = Reading(source, spans)
    parts = split(reading, section_chars=cut.section_chars, held_out=cut.held_out, start=cut.start)
    with (
        _File(stem_file(stem, "train"), cut.dtype) as train,
        _File(stem_file(stem, "held_out"), cut.dtype) as held,
    ):
        for batch in _batches(parts):
            for part, ids in zip(batch, tokenizer.encode([p.text for p in batch]), strict=True):
                file = held if part.held_out else train
                file.add(ids)
                file.add(np.array([tokenizer.end], np.uint32))
            advance(sum(len(part.text) for part in batch))
        return Tokenised(
            text=reading.text,
            tokenizer=tokenizer.digest,
            train=train.finish(),
            held_out=held.finish(),
        )


def stem_file(stem: Path, stream: str) -> Path:
    """Where a piece's `train` or `held_out` tokens are."""
    return stem.with_name(f"{stem.name}.{stream}")


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts in order, half a million characters or one part at a time."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.text)
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _File:
    """A stream on its way to disk; unless it is finished, nothing of it stays."""

    def __init__(self, path: Path, dtype: Dtype) -> None:
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._sum = hashlib.sha256()
        self._file: BinaryIO | None = None
        self._num = 0
        self._whole = False

    def __enter__(self) -> "_File":
        self._path.unlink(missing_ok=True)  # what a kill left
        return self

    def add(self, ids: Tokens) -> None:
        """Appends."""
        if self._file is None:
            self._file = self._path.open("wb", buffering=1 << 20)
        data = ids.astype(self._dtype, copy=False).tobytes()
        self._sum.update(data)
        self._file.write(data)
        self._num += ids.size

    def finish(self) -> Stream:
        """Durable."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._whole = True
        return Stream(num_tokens=self._num, sha256=self._sum.hexdigest())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._file is not None:
                self._file.close()
        finally:
            if not self._whole or fault is not None:
                self._path.unlink(missing_ok=True)
