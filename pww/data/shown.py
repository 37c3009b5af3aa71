"""What is in a tokenised corpus, for a person and for a program."""

import json

from pww.data.corpus import Corpus


def as_text(corpus: Corpus, *, window: int, held_out: bool) -> str:
    """The manifest's numbers, then the text of one window.

    Raises:
        DataError: there is no such window, or the tokenizer beside the shards is another one.
    """
    made = corpus.manifest
    shards = made.shards + made.held_out
    rows = (
        ("folder", str(corpus.folder)),
        ("digest", made.digest),
        ("corpus", f"{made.num_documents:,} documents ({made.num_empty:,} empty ones left out)"),
        ("corpus digest", made.corpus),
        ("tokens", f"{made.num_tokens:,}, of which {made.tail_tokens:,} fill no window"),
        (
            "windows",
            f"{made.num_windows:,} to train on, {made.num_held_out:,} held out,"
            f" {made.num_left_out:,} left out (data.max_windows)",
        ),
        ("window", f"{made.seq_len} tokens and the next one (model.seq_len={made.seq_len})"),
        ("tokenizer", str(corpus.tokenizer_file)),
        ("tokenizer digest", made.tokenizer),
        (
            "vocabulary",
            f"{made.vocab_size:,} ids, padded to {made.padded_vocab:,};"
            f" end of document {made.end_of_document}",
        ),
        (
            "shards",
            f"{len(shards)} of {made.dtype}, {sum(shard.size_bytes for shard in shards):,} bytes",
        ),
        ("made by", made.tool),
    )
    lines = [f"{name:<18}{value}" for name, value in rows]
    name = "held-out window" if held_out else "window"
    return "\n".join([*lines, "", f"{name} {window}:", _text(corpus, window, held_out)])


def as_json(corpus: Corpus, *, window: int, held_out: bool) -> str:
    """One line: the manifest with its digest, the folder, and the window's text and ids.

    Raises:
        DataError: like `as_text`.
    """
    fields = json.loads(corpus.manifest.to_json())
    sample = {
        "window": window,
        "held_out": held_out,
        "ids": _ids(corpus, window, held_out),
        "text": _text(corpus, window, held_out),
    }
    return json.dumps({"folder": str(corpus.folder), "manifest": fields, "sample": sample})


def _ids(corpus: Corpus, window: int, held_out: bool) -> list[int]:
    rows = corpus.held_out([window]) if held_out else corpus.windows([window])
    return [int(token) for token in rows[0]]


def _text(corpus: Corpus, window: int, held_out: bool) -> str:
    return corpus.decode(_ids(corpus, window, held_out))
