import hashlib
import json
import lzma

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from pww.clock import ManualClock
from pww.config.schema import BpeTokenizer
from pww.data import Corpus, prepare, read_manifest
from pww.data.build import build, padded
from pww.data.sources import open_source
from pww.errors import DataError


@pytest.fixture
def made(tmp_path, settings, lines):
    """Prepares the sample corpus; keyword arguments replace fields of `Data`."""
    (tmp_path / "text" / "a.txt").write_text(lines(0, 900))
    (tmp_path / "text" / "b.txt").write_text(lines(900, 1000))

    def make(*, seq_len=16, vocab_multiple=256, **changes):
        return prepare(
            settings(**changes), seq_len=seq_len, vocab_multiple=vocab_multiple, project=tmp_path
        )

    return make


def text_of(corpus, windows):
    return corpus.decode(np.concatenate(windows).tolist())


def test_the_manifest_counts_everything(made):
    manifest = made().manifest
    assert (manifest.window_tokens, manifest.seq_len) == (17, 16)
    assert (manifest.vocab_size, manifest.padded_vocab, manifest.dtype) == (300, 512, "uint16")
    assert (manifest.num_documents, manifest.num_empty, manifest.num_left_out) == (2, 0, 0)
    assert manifest.num_tokens == (
        (manifest.num_windows + manifest.num_held_out) * 17 + manifest.tail_tokens
    )
    assert 0 <= manifest.tail_tokens <= 2 * 16
    share = manifest.num_held_out / (manifest.num_windows + manifest.num_held_out)
    assert share == pytest.approx(0.1, abs=0.02)


def test_windows_are_what_the_shapes_say(made):
    corpus = made()
    windows = corpus.windows([0, 2])
    assert (windows.shape, windows.dtype) == ((2, 17), np.int64)
    assert corpus.held_out(range(corpus.manifest.num_held_out)).shape[1] == 17


def test_every_line_is_in_one_window_of_one_side(made):
    corpus = made()
    train = text_of(corpus, corpus.windows(range(corpus.manifest.num_windows)))
    held = text_of(corpus, corpus.held_out(range(corpus.manifest.num_held_out)))
    found = [
        [int(line.split()[1]) for line in text.replace("<|endoftext|>", "").splitlines()[:-1]]
        for text in (train, held)
    ]
    assert not set(found[0]) & set(found[1])
    together = found[0] + found[1]
    assert len(together) == len(set(together))
    missing = set(range(1000)) - set(together)
    assert len(missing) <= 2 * 3  # the two tails: 16 tokens and a cut line each
    assert min(found[1]) < 200
    assert max(found[1]) > 800  # held-out text is spread over the corpus


def test_each_part_of_a_document_ends_with_the_end_of_document(made):
    corpus = made()
    end = corpus.manifest.end_of_document
    train = corpus.windows(range(corpus.manifest.num_windows)).reshape(-1)
    text = corpus.decode(train.tolist())
    assert (train == end).sum() == text.count("<|endoftext|>") > 1
    assert all(part.startswith("line ") for part in text.split("<|endoftext|>") if part)


def test_the_tokenizer_is_trained_on_training_text_only(tmp_path, settings, lines):
    # One section of ten is held out, and only it has the word.
    plain = [lines(i * 40, i * 40 + 40) for i in range(10)]
    size = sum(map(len, plain))
    at = 0
    text = ""
    for line in "".join(plain).splitlines(keepends=True):
        middle = 0.455 * size < at < 0.49 * size
        text += line.replace("says", "zyzzyva") if middle else line
        at += len(line)
    (tmp_path / "text" / "a.txt").write_text(text)
    corpus = prepare(
        settings(tokenizer=BpeTokenizer(kind="bpe", vocab_size=400)),
        seq_len=100,
        vocab_multiple=1,
        project=tmp_path,
    )
    held = text_of(corpus, corpus.held_out(range(corpus.manifest.num_held_out)))
    assert "zyzzyva" in held
    vocabulary = json.loads(corpus.tokenizer_file.read_text())["model"]["vocab"]
    assert "Ġsays" in vocabulary
    assert not any("zy" in token for token in vocabulary)


def test_a_second_call_takes_it_from_the_cache(made, caplog):
    caplog.set_level("INFO")
    first = made()
    assert "tokenised sample in" in caplog.text
    assert "training" not in caplog.text.rpartition("tokenised sample in")[2]  # not if it is a set
    before = first.tokenizer_file.stat()
    caplog.clear()
    second = made()
    assert second.folder == first.folder
    assert second.manifest == first.manifest
    assert second.tokenizer_file.stat() == before
    assert caplog.messages == ["corpus sample was tokenised already"]


@pytest.mark.parametrize(
    "change",
    [
        {"seq_len": 17},
        {"vocab_multiple": 64},
        {"held_out": 0.2},
        {"max_windows": 5},
        {"files": ("a.txt",)},
        {"tokenizer": BpeTokenizer(kind="bpe", vocab_size=299)},
    ],
)
def test_every_setting_that_matters_has_its_own_entry_and_digest(made, change):
    assert made(**change).folder != made().folder
    assert made(**change).manifest.digest != made().manifest.digest


def test_what_does_not_decide_the_windows_is_not_in_the_digest(made, tmp_path):
    corpus = made()
    renamed = made(
        name="other", cache="elsewhere", files=("**/*.txt",), roots=("none", str(tmp_path))
    )
    assert renamed.folder.parent == tmp_path / "elsewhere"
    assert renamed.manifest.digest == corpus.manifest.digest


def test_one_text_in_two_formats_is_one_corpus(made, tmp_path):
    rows = [{"text": (tmp_path / "text" / name).read_text()} for name in ("a.txt", "b.txt")]
    (tmp_path / "text" / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert made(kind="jsonl", files=("c.jsonl",)).manifest.digest == made().manifest.digest


def test_shard_and_tokenizer_digests_are_those_of_the_files(made):
    corpus = made()
    manifest = read_manifest(corpus.folder / "manifest.json")
    for shard in manifest.shards + manifest.held_out:
        data = (corpus.folder / shard.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard.size_bytes, shard.sha256)
    assert hashlib.sha256(corpus.tokenizer_file.read_bytes()).hexdigest() == manifest.tokenizer


def test_max_windows_keeps_windows_from_all_over_the_corpus(made):
    every, some = made(), made(max_windows=7)
    num = every.manifest.num_windows
    assert (some.manifest.num_windows, some.manifest.num_left_out) == (7, num - 7)
    kept = [i * num // 7 for i in range(7)]
    assert np.array_equal(some.windows(range(7)), every.windows(kept))
    held = range(every.manifest.num_held_out)
    assert np.array_equal(some.held_out(held), every.held_out(held))
    assert some.manifest.num_tokens == every.manifest.num_tokens
    assert sorted(path.name for path in some.folder.iterdir()) == [
        "chosen-00000.npy",
        "held_out-00000.npy",
        "manifest.json",
        "tokenizer.json",
    ]


def test_max_windows_beyond_the_corpus_changes_nothing(made):
    assert made(max_windows=10**6).manifest.digest == made().manifest.digest


def test_empty_documents_are_skipped_and_counted(settings, tmp_path, lines):
    path = tmp_path / "text" / "c.jsonl"
    rows = [{"text": lines(i, i + 1)} for i in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = settings(kind="jsonl", files=("c.jsonl",))
    plain = prepare(data, seq_len=16, vocab_multiple=1, project=tmp_path)
    rows[100:100] = [{"text": ""}, {"text": " \n\t"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    holey = prepare(data, seq_len=16, vocab_multiple=1, project=tmp_path)
    assert (plain.manifest.num_documents, plain.manifest.num_empty) == (300, 0)
    assert (holey.manifest.num_documents, holey.manifest.num_empty) == (300, 2)
    assert holey.manifest.corpus == plain.manifest.corpus
    assert holey.manifest.shards == plain.manifest.shards


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [
        (65_500, "uint16"),
        (65_535, "uint16"),
        (65_536, "uint16"),
        (65_537, "uint32"),
        (128_256, "uint32"),
    ],
)
def test_a_vocabulary_reads_back_its_largest_id(tmp_path, settings, given, vocab_size, dtype):
    words = {"<|endoftext|>": 0} | {f"w{i}": i for i in range(1, vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path / "tokenizer.json.xz"
    path.write_bytes(lzma.compress(tokenizer.to_str().encode(), preset=0))
    (tmp_path / "text" / "a.txt").write_text(f"w{vocab_size - 1} w2\n" * 500)
    data = settings(tokenizer=given(path))
    corpus = prepare(data, seq_len=7, vocab_multiple=256, project=tmp_path)
    assert corpus.manifest.vocab_size == vocab_size
    assert corpus.manifest.dtype == dtype
    assert (
        corpus.manifest.padded_vocab
        == {
            65_500: 65_536,
            65_535: 65_536,
            65_536: 65_536,
            65_537: 65_792,
            128_256: 128_256,
        }[vocab_size]
    )
    ids = set(corpus.windows(range(corpus.manifest.num_windows)).reshape(-1).tolist())
    assert ids == {0, 2, vocab_size - 1}


def test_padding_is_to_the_next_multiple():
    assert [padded(n, 256) for n in (1, 256, 257, 131_073)] == [256, 256, 512, 131_328]


# ------------------------------------------------------------------------------------ refusals


def test_an_id_of_no_window_is_refused(made):
    corpus = made(max_windows=5)
    with pytest.raises(DataError, match=r"training window 5 does not exist: this corpus has 5"):
        corpus.windows([5])
    num = corpus.manifest.num_held_out
    with pytest.raises(DataError, match=rf"held-out window {num} does not exist"):
        corpus.held_out([num])


def test_a_corpus_too_small_for_a_window_is_refused_with_its_numbers(made, tmp_path):
    with pytest.raises(DataError) as fault:
        made(seq_len=4000)
    text = str(fault.value)
    assert "corpus 'sample' is too small: its " in text
    assert " windows of 4001 tokens and its " in text
    assert "(data.held_out=0.1) give 0; at least 1 of each is needed" in text
    assert "lower model.seq_len, raise data.held_out, or give more text" in text
    assert not list((tmp_path / "cache").glob("*.part"))
    assert not list((tmp_path / "cache").glob("*/manifest.json"))


def test_a_corpus_without_text_is_refused(settings, tmp_path):
    (tmp_path / "text" / "a.txt").write_text(" \n")
    with pytest.raises(DataError) as fault:
        prepare(settings(), seq_len=16, vocab_multiple=1, project=tmp_path)
    assert str(fault.value) == (
        "corpus 'sample' has no text: 0 documents and 1 empty ones; check data.files"
    )


def test_text_that_changes_under_the_build_is_refused(settings, tmp_path, lines):
    path = tmp_path / "text" / "a.txt"
    path.write_text(lines(0, 500))
    source = open_source(settings(), project=tmp_path)

    class Growing:
        readings = 0

        def fingerprint(self):
            return source.fingerprint()

        def pieces(self):
            return source.pieces()

        def read(self, spans):
            self.readings += 1
            if self.readings == 3:
                path.write_text(lines(0, 501))
            return source.read(spans)

    (tmp_path / "out").mkdir()
    with pytest.raises(
        DataError, match=r"corpus 'sample' changed while it was read: digest \w{64} became"
    ):
        build(
            tmp_path / "out",
            Growing(),
            settings(),
            kept_folder=tmp_path / "kept",
            project=tmp_path,
            tokenizer_path=None,
            seq_len=16,
            vocab_multiple=1,
            clock=ManualClock(),
        )


def test_a_damaged_entry_is_refused_with_both_values(made):
    corpus = made()
    path = corpus.folder / corpus.manifest.shards[0].name
    path.write_bytes(path.read_bytes() + b"x")
    size = corpus.manifest.shards[0].size_bytes
    with pytest.raises(
        DataError, match=f"has {size + 1:,} bytes, its manifest says {size:,}; delete"
    ):
        made()


def test_a_token_that_no_text_has_is_refused(made):
    """Sizes and headers of a damaged shard may be right."""
    corpus = made()
    shard = corpus.folder / corpus.manifest.shards[0].name
    shard.chmod(0o600)
    with shard.open("r+b") as file:
        file.seek(-2, 2)
        file.write(b"\xff\xff")
    damaged = made()
    last = damaged.manifest.num_windows - 1
    assert damaged.windows([0]).size
    with pytest.raises(DataError, match="is damaged: it holds token 65535, its vocabulary has 300"):
        damaged.windows([last])


def test_a_manifest_of_other_settings_is_refused_with_both_values(made):
    with pytest.raises(DataError, match=r"manifest.json has seq_len 16, this run needs 32; delete"):
        made().check(seq_len=32, vocab_multiple=256)
    with pytest.raises(DataError, match=r"has padded vocabulary 512, this run needs 384; delete"):
        made().check(seq_len=16, vocab_multiple=128)


def test_a_manifest_of_another_tool_is_refused(made):
    corpus = made()
    other = corpus.manifest.model_copy(update={"tool": "pww.data/0"})
    (corpus.folder / "manifest.json").write_bytes(other.to_json())
    with pytest.raises(DataError, match=r"has tool pww.data/0, this run needs pww.data/2; delete"):
        made()


def test_a_manifest_whose_count_is_not_that_of_its_shards_is_refused(made):
    corpus = made()
    num = corpus.manifest.num_windows
    other = corpus.manifest.model_copy(update={"num_windows": num + 1})
    (corpus.folder / "manifest.json").write_bytes(other.to_json())
    with pytest.raises(
        DataError, match=f"counts {num + 1} training windows, its shards hold {num}; delete"
    ):
        Corpus(corpus.folder)


def test_another_tokenizer_beside_the_shards_is_refused(made):
    corpus = made()
    corpus.tokenizer_file.write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    with pytest.raises(DataError) as fault:
        corpus.decode([1])
    assert str(fault.value) == (
        f"{corpus.tokenizer_file} has digest {digest}, its manifest says"
        f" {corpus.manifest.tokenizer}; delete {corpus.folder} and start again"
    )
    corpus.tokenizer_file.unlink()
    with pytest.raises(DataError, match=r"cannot read .*tokenizer.json: No such file.*; delete"):
        corpus.decode([1])


def test_a_missing_tokenizer_names_where_it_was_looked_for(made, given, tmp_path):
    with pytest.raises(DataError) as fault:
        made(tokenizer=given("tok/tokenizer.json"), roots=("text",))
    assert str(fault.value) == (
        "no tokenizer 'tok/tokenizer.json' (data.tokenizer.path); looked for"
        f" {tmp_path / 'tok/tokenizer.json'}, {tmp_path / 'text/tok/tokenizer.json'};"
        " set data.tokenizer.path to a tokenizer.json, or data.tokenizer.kind=bpe"
    )


def test_a_tokenizer_is_found_below_a_root(made, given, tmp_path):
    trained = made()
    (tmp_path / "text" / "tokenizer.json").write_bytes(trained.tokenizer_file.read_bytes())
    assert made(tokenizer=given("tokenizer.json")).manifest.digest == trained.manifest.digest


def test_a_tokenizer_that_cannot_be_read_is_refused(made, given):
    with pytest.raises(
        DataError, match=r"cannot read tokenizer /proc/self/mem: Input/output error"
    ):
        made(tokenizer=given("/proc/self/mem"))


def test_a_cache_that_cannot_be_written_is_refused(made, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError,
        match=r"cannot write the tokenised corpus .*file/sample-\w{16}: .*; make room there"
        r" and start again \(finished pieces are kept\), or set data.cache to another folder",
    ):
        made(cache="file")
