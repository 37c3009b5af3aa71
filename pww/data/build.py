"""The build: documents in; tokenizer, shards and manifest out, the same on any machine.

Three readings of the source: count and digest, train the tokenizer (if it is to be trained),
encode. The last one must see what the first one saw. The first and the last go piece by piece, on
all cores; finished pieces are kept until the corpus is published, which takes the tokens' size
twice for that time.
"""

import logging
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import accumulate
from pathlib import Path

from pww.clock import Clock
from pww.config.schema import BpeTokenizer, Data
from pww.data.digest import DocumentsDigest
from pww.data.kept import Kept
from pww.data.manifest import FILE, TOOL, Manifest, Shard
from pww.data.pieces import Piece
from pww.data.pool import Order, Workers, workers_for
from pww.data.progress import Advance, progress
from pww.data.shards import Dtype, Shards, ShardWriter, dtype_for
from pww.data.sources import Source, documents
from pww.data.split import Part, section_length, split
from pww.data.tokenizer import TextTokenizer, read_tokenizer, train_bpe
from pww.data.work import Cut, Text, Tokenised
from pww.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
SELECT_WINDOWS = 1 << 14

_log = logging.getLogger(__name__)


def build(
    folder: Path,
    source: Source,
    data: Data,
    *,
    kept_folder: Path,
    project: Path,
    tokenizer_path: Path | None,
    seq_len: int,
    vocab_multiple: int,
    clock: Clock,
) -> Manifest:
    """Writes `folder` (which must be empty); the caller makes it durable and publishes it.

    `kept_folder` holds finished pieces, of this build and of earlier ones that were cut off; the
    caller removes it when the corpus is published.

    Raises:
        DataError: the source or tokenizer is unusable, or there is too little text.
        OSError: something cannot be written; what is in `kept_folder` may be used again.
    """
    width = seq_len + 1
    pieces = source.pieces()
    kept = Kept(kept_folder, pieces)
    chosen: list[TextTokenizer] = []
    with workers_for(
        source, data, project=project, folder=kept_folder, tokenizer=lambda: chosen[0]
    ) as workers:
        texts = _counted_pieces(pieces, workers, kept, data=data, clock=clock)
        num_chars = sum(text.num_chars for text in texts)
        section_chars = section_length(num_chars, held_out=data.held_out, window_tokens=width)
        tokenizer = kept.tokenizer() or _tokenizer(
            source, data, tokenizer_path, num_chars=num_chars, section_chars=section_chars,
            clock=clock,
        )  # fmt: skip
        kept.keep(tokenizer)
        chosen.append(tokenizer)
        dtype = dtype_for(tokenizer.vocab_size)
        starts = accumulate((text.num_chars for text in texts), initial=0)
        cuts = [
            Cut(start=start, section_chars=section_chars, held_out=data.held_out, dtype=dtype)
            for start, _ in zip(starts, texts, strict=False)
        ]
        _tokenise(
            pieces, texts, cuts, workers, kept, tokenizer=tokenizer, name=data.name, clock=clock
        )
    return _assemble(
        folder, kept, texts, data, tokenizer=tokenizer, width=width, vocab_multiple=vocab_multiple
    )


def padded(vocab_size: int, multiple: int) -> int:
    """`vocab_size` rounded up to a multiple; the rows above it are never targets."""
    return -(-vocab_size // multiple) * multiple


def _counted_pieces(
    pieces: tuple[Piece, ...], workers: Workers, kept: Kept, *, data: Data, clock: Clock
) -> list[Text]:
    """What every piece holds: the first reading."""
    _log.info("preparing corpus %s: reading its text", data.name)
    orders = [Order(i, piece) for i, piece in enumerate(pieces) if i not in kept.texts]
    # Characters are not known before, the files' sizes are
    total = sum(order.piece.size_bytes for order in orders)
    with progress("reading", total=total, clock=clock, unit="bytes") as advance:
        for number, done in workers.run(orders, lambda _: None):
            kept.add(number, done)
            advance(pieces[number].size_bytes)
    texts = [kept.texts[i] for i in range(len(pieces))]
    if not sum(text.num_documents for text in texts):
        raise DataError(
            f"corpus {data.name!r} has no text: 0 documents and"
            f" {sum(text.num_empty for text in texts)} empty ones; check data.files"
        )
    return texts


def _tokenizer(
    source: Source,
    data: Data,
    path: Path | None,
    *,
    num_chars: int,
    section_chars: int,
    clock: Clock,
) -> TextTokenizer:
    """The one that is here already, or one trained on what is not held out: the second reading."""
    if path is not None:
        return read_tokenizer(path)
    assert isinstance(data.tokenizer, BpeTokenizer)
    size = data.tokenizer.vocab_size
    with progress("reading for the tokenizer", total=num_chars, clock=clock) as advance:
        texts = (text for text in documents(source) if text.strip())
        parts = split(texts, section_chars=section_chars, held_out=data.held_out)
        return train_bpe(_training_text(_counted(parts, advance), vocab_size=size), vocab_size=size)


def _tokenise(
    pieces: tuple[Piece, ...],
    texts: list[Text],
    cuts: list[Cut],
    workers: Workers,
    kept: Kept,
    *,
    tokenizer: TextTokenizer,
    name: str,
    clock: Clock,
) -> None:
    """Makes tokens of every piece that has none yet: the last reading."""
    done_before = kept.tokenised(tokenizer=tokenizer.digest, dtype=cuts[0].dtype)
    orders = [
        Order(i, piece, cut)
        for i, (piece, cut) in enumerate(zip(pieces, cuts, strict=True))
        if i not in done_before
    ]
    if done_before:
        _log.info(
            "going on with a build that was cut off: %d of %d pieces are tokenised",
            len(done_before),
            len(pieces),
        )
    num_chars = sum(texts[order.number].num_chars for order in orders)
    with progress("tokenising", total=num_chars, clock=clock) as advance:
        for number, done in workers.run(orders, advance):
            assert isinstance(done, Tokenised)
            if done.text != texts[number]:
                raise DataError(
                    f"corpus {name!r} changed while it was read: digest"
                    f" {texts[number].digest.hex} became {done.text.digest.hex}; start again when"
                    " its files are complete"
                )
            kept.add(number, done)


def _assemble(
    folder: Path,
    kept: Kept,
    texts: list[Text],
    data: Data,
    *,
    tokenizer: TextTokenizer,
    width: int,
    vocab_multiple: int,
) -> Manifest:
    """The pieces' tokens end to end, cut into windows; and what they are."""
    dtype = dtype_for(tokenizer.vocab_size)
    streams = {}
    for stem in ("train", "held_out"):
        with ShardWriter(folder, stem=stem, window_tokens=width, dtype=dtype) as writer:
            for piece in range(len(texts)):
                for tokens in kept.tokens(piece, stem, dtype):
                    writer.add(tokens)
            streams[stem] = (writer.finish(), writer.num_tokens)
        if writer.num_tokens != kept.num_tokens(stem):
            raise DataError(
                f"{kept.folder} holds {writer.num_tokens:,} tokens for {stem}, it should be"
                f" {kept.num_tokens(stem):,}: something else changed it; start again"
            )
    (train_shards, train_tokens), (held_shards, held_tokens) = streams["train"], streams["held_out"]
    num_all, num_held = train_tokens // width, held_tokens // width
    if not num_all or (data.held_out and not num_held):
        raise DataError(
            f"corpus {data.name!r} is too small: its {train_tokens:,} training tokens give"
            f" {num_all} windows of {width} tokens and its {held_tokens:,} held-out tokens"
            f" (data.held_out={data.held_out}) give {num_held}; at least 1 of each is needed:"
            " lower model.seq_len, raise data.held_out, or give more text"
        )
    num_windows = min(num_all, data.max_windows or num_all)
    if num_windows < num_all:
        train_shards = _select(folder, train_shards, keep=num_windows, width=width, dtype=dtype)
    manifest = Manifest(
        tool=TOOL,
        corpus=reduce(DocumentsDigest.join, (text.digest for text in texts)).hex,
        tokenizer=tokenizer.digest,
        window_tokens=width,
        dtype=dtype,
        vocab_size=tokenizer.vocab_size,
        padded_vocab=padded(tokenizer.vocab_size, vocab_multiple),
        end_of_document=tokenizer.end,
        num_documents=sum(text.num_documents for text in texts),
        num_empty=sum(text.num_empty for text in texts),
        num_tokens=train_tokens + held_tokens,
        num_windows=num_windows,
        num_held_out=num_held,
        num_left_out=num_all - num_windows,
        tail_tokens=train_tokens % width + held_tokens % width,
        shards=train_shards,
        held_out=held_shards,
    )
    (folder / TOKENIZER_FILE).write_bytes(tokenizer.json)
    (folder / FILE).write_bytes(manifest.to_json())
    return manifest


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
