"""Nothing of a corpus is lost or doubled between documents and windows, and text comes back."""

import itertools
import math
import tempfile
from functools import reduce
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pww.data.digest import DocumentsDigest
from pww.data.shards import Shards, ShardWriter
from pww.data.split import is_held_out, section_length, split
from pww.data.tokenizer import train_bpe

TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
LINES = st.lists(st.text("ab \n", max_size=30), max_size=30).map("\n".join)
SHARE = st.floats(0.001, 0.499)
BPE = train_bpe(["the cat sat on the mat, that is that\n"] * 20, vocab_size=290)


@given(st.lists(TEXT | LINES, max_size=20), st.integers(1, 100), SHARE)
def test_the_parts_of_a_split_are_the_documents(documents, section_chars, share):
    parts = list(split(documents, section_chars=section_chars, held_out=share))
    assert all(part.text for part in parts)
    remaining = iter(parts)
    for text in documents:
        built = ""
        while len(built) < len(text):
            built += next(remaining).text
        assert built == text  # so no part spans two documents
    assert next(remaining, None) is None


@given(
    st.lists(TEXT | LINES, max_size=20), st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 100), SHARE,
)  # fmt: skip
def test_pieces_are_split_like_the_whole(documents, cuts, section_chars, share):
    """What a worker makes of its piece, given where it begins, is what one process would make."""
    whole = list(split(documents, section_chars=section_chars, held_out=share))
    edges = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    start, pieces, digest = 0, [], DocumentsDigest()
    for first, last in itertools.pairwise(edges):
        piece = documents[first:last]
        pieces += split(piece, section_chars=section_chars, held_out=share, start=start)
        start += sum(map(len, piece))
        digest = digest.join(reduce(lambda d, t: d.then(t.encode()), piece, DocumentsDigest()))
    assert pieces == whole
    assert digest == reduce(lambda d, t: d.then(t.encode()), documents, DocumentsDigest())


@given(st.lists(TEXT, min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_another_order_is_another_digest(documents, random):
    shuffled = random.sample(documents, len(documents))
    digests = [
        reduce(lambda d, t: d.then(t.encode()), texts, DocumentsDigest())
        for texts in (documents, shuffled)
    ]
    assert (digests[0].hex == digests[1].hex) == (documents == shuffled)


@given(st.lists(LINES, max_size=20), st.integers(62, 200), SHARE)
def test_no_line_is_cut_where_lines_are_short(documents, section_chars, share):
    whole = [line for text in documents for line in text.splitlines(keepends=True)]
    parts = split(documents, section_chars=section_chars, held_out=share)
    assert [line for part in parts for line in part.text.splitlines(keepends=True)] == whole


@given(st.lists(st.text("ab", min_size=1, max_size=50), max_size=30), st.integers(1, 40), SHARE)
def test_a_part_is_held_out_by_the_section_that_it_starts_in(documents, section_chars, share):
    start = 0
    for part in split(documents, section_chars=section_chars, held_out=share):
        assert part.held_out == is_held_out(start // section_chars, share)
        start += len(part.text)


@given(st.integers(2, 10**7), SHARE, st.integers(2, 8193))
def test_every_corpus_has_a_held_out_section_in_its_text(num_chars, share, window_tokens):
    length = section_length(num_chars, held_out=share, window_tokens=window_tokens)
    sections = range(min(math.ceil(num_chars / length), 100_000))
    assert any(is_held_out(section, share) for section in sections) or num_chars * share < 1


@settings(deadline=None)
@given(
    stream=st.lists(st.integers(0, 65_535), max_size=300),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    width=st.integers(2, 12),
    shard_bytes=st.integers(1, 400),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_token_is_in_one_window_or_in_the_tail(stream, cuts, width, shard_bytes, seed):
    tokens = np.array(stream, np.uint32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ShardWriter(
            folder, stem="s", window_tokens=width, dtype="uint16", shard_bytes=shard_bytes
        ) as writer:
            for piece in np.split(tokens, sorted(min(cut, len(stream)) for cut in cuts)):
                writer.add(piece)
            shards = writer.finish()
        assert writer.num_tokens == len(stream)
        reader = Shards(folder, shards, window_tokens=width, dtype="uint16", what="training")
        num = len(stream) // width
        assert len(reader) == num == sum(shard.windows for shard in shards)
        rows = tokens[: num * width].reshape(num, width)
        assert np.array_equal(reader.read(np.arange(num)), rows)
        ids = np.random.default_rng(seed).integers(0, num, 20 if num else 0)
        assert np.array_equal(reader.read(ids), rows[ids])


@given(st.lists(TEXT, min_size=1, max_size=5))
def test_bytes_level_tokens_give_the_text_back(texts):
    for text, ids in zip(texts, BPE.encode(texts), strict=True):
        assert BPE.decode(ids.tolist()) == text
        assert BPE.end not in ids
