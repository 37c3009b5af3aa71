"""The build: documents in; tokenizer, shards and manifest out, the same on any machine.

Three readings of the source: count and digest, train the tokenizer (if it is to be trained),
encode. The last one must see what the first one saw.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from pww.clock import Clock
from pww.config.schema import BpeTokenizer, Data
from pww.data.manifest import FILE, TOOL, Manifest, Shard
from pww.data.progress import Advance, progress
from pww.data.shards import Dtype, Shards, ShardWriter, dtype_for
from pww.data.sources import Source
from pww.data.split import Part, section_length, split
from pww.data.tokenizer import read_tokenizer, train_bpe
from pww.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
BATCH_CHARS = 1 << 20
SELECT_WINDOWS = 1 << 14

_log = logging.getLogger(__name__)


class Reading:
    """One pass over the documents that have text, with their count and digest so far."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sum = hashlib.sha256()
        self.num_documents = 0
        self.num_empty = 0
        self.num_chars = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._source.documents():
            if not text.strip():
                self.num_empty += 1
                continue
            data = text.encode()
            self._sum.update(len(data).to_bytes(8, "little"))
            self._sum.update(data)
            self.num_documents += 1
            self.num_chars += len(text)
            yield text

    @property
    def digest(self) -> str:
        """SHA-256 over every document read, each after its length."""
        return self._sum.hexdigest()


def build(
    folder: Path,
    source: Source,
    data: Data,
    *,
    tokenizer_path: Path | None,
    seq_len: int,
    vocab_multiple: int,
    clock: Clock,
) -> Manifest:
    """Writes `folder` (which must be empty); the caller makes it durable and publishes it.

    Raises:
        DataError: the source or tokenizer is unusable, or there is too little text.
    """
    width = seq_len + 1
    _log.info("preparing corpus %s: reading its text", data.name)
    first = Reading(source)
    with progress("reading", num_chars=None, clock=clock) as advance:
        for text in first:
            advance(len(text))
    if not first.num_documents:
        raise DataError(
            f"corpus {data.name!r} has no text: 0 documents and {first.num_empty} empty ones;"
            " check data.files"
        )
    section_chars = section_length(first.num_chars, held_out=data.held_out, window_tokens=width)

    def parts(documents: Iterable[str]) -> Iterator[Part]:
        return split(documents, section_chars=section_chars, held_out=data.held_out)

    if tokenizer_path is None:
        assert isinstance(data.tokenizer, BpeTokenizer)
        size = data.tokenizer.vocab_size
        with progress(
            "reading for the tokenizer", num_chars=first.num_chars, clock=clock
        ) as advance:
            texts = _training_text(_counted(parts(Reading(source)), advance), vocab_size=size)
            tokenizer = train_bpe(texts, vocab_size=size)
    else:
        tokenizer = read_tokenizer(tokenizer_path)
    dtype = dtype_for(tokenizer.vocab_size)

    last = Reading(source)
    with (
        ShardWriter(folder, stem="train", window_tokens=width, dtype=dtype) as train,
        ShardWriter(folder, stem="held_out", window_tokens=width, dtype=dtype) as held,
    ):
        with progress("tokenising", num_chars=first.num_chars, clock=clock) as advance:
            for batch in _batches(_counted(parts(last), advance)):
                for part, ids in zip(batch, tokenizer.encode([p.text for p in batch]), strict=True):
                    stream = held if part.held_out else train
                    stream.add(np.append(ids, np.uint32(tokenizer.end)))
        if last.digest != first.digest:
            raise DataError(
                f"corpus {data.name!r} changed while it was read: digest {first.digest} became"
                f" {last.digest}; start again when its files are complete"
            )
        train_shards, held_shards = train.finish(), held.finish()
    num_all, num_held = train.num_tokens // width, held.num_tokens // width
    if not (num_all and num_held):
        raise DataError(
            f"corpus {data.name!r} is too small: its {train.num_tokens:,} training tokens give"
            f" {num_all} windows of {width} tokens and its {held.num_tokens:,} held-out tokens"
            f" (data.held_out={data.held_out}) give {num_held}; at least 1 of each is needed:"
            " lower model.seq_len, raise data.held_out, or give more text"
        )
    num_windows = min(num_all, data.max_windows or num_all)
    if num_windows < num_all:
        train_shards = _select(folder, train_shards, keep=num_windows, width=width, dtype=dtype)
    manifest = Manifest(
        tool=TOOL,
        corpus=first.digest,
        tokenizer=tokenizer.digest,
        window_tokens=width,
        dtype=dtype,
        vocab_size=tokenizer.vocab_size,
        padded_vocab=padded(tokenizer.vocab_size, vocab_multiple),
        end_of_document=tokenizer.end,
        num_documents=first.num_documents,
        num_empty=first.num_empty,
        num_tokens=train.num_tokens + held.num_tokens,
        num_windows=num_windows,
        num_held_out=num_held,
        num_left_out=num_all - num_windows,
        tail_tokens=train.num_tokens % width + held.num_tokens % width,
        shards=train_shards,
        held_out=held_shards,
    )
    (folder / TOKENIZER_FILE).write_bytes(tokenizer.json)
    (folder / FILE).write_bytes(manifest.to_json())
    return manifest


def padded(vocab_size: int, multiple: int) -> int:
    """`vocab_size` rounded up to a multiple; the rows above it are never targets."""
    return -(-vocab_size // multiple) * multiple


def _counted(parts: Iterable[Part], advance: Advance) -> Iterator[Part]:
    """The same parts; each counts as done when the next one is asked for."""
    for part in parts:
        yield part
        advance(len(part.text))


def _training_text(parts: Iterable[Part], *, vocab_size: int) -> Iterator[str]:
    """What is not held out; says when all of it is read, since merging takes its time too."""
    for part in parts:
        if not part.held_out:
            yield part.text
    _log.info("training a byte-level BPE of at most %s tokens on it", f"{vocab_size:,}")


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts in order, a million characters or one part at a time."""
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


def _select(
    folder: Path, shards: tuple[Shard, ...], *, keep: int, width: int, dtype: Dtype
) -> tuple[Shard, ...]:
    """Replaces the shards by `keep` of their windows, spread evenly: a short run sees it all."""
    every = Shards(folder, shards, window_tokens=width, dtype=dtype, what="training")
    with ShardWriter(folder, stem="chosen", window_tokens=width, dtype=dtype) as writer:
        for start in range(0, keep, SELECT_WINDOWS):
            stop = min(start + SELECT_WINDOWS, keep)
            ids = [i * len(every) // keep for i in range(start, stop)]
            writer.add(every.read(ids).reshape(-1))
        chosen = writer.finish()
    for shard in shards:
        (folder / shard.name).unlink()
    return chosen
