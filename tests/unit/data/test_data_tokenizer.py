import json
import lzma

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from pww.data.tokenizer import read_tokenizer, train_bpe
from pww.errors import DataError


def words(*names, unknown=None):
    model = models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=unknown)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def saved(tmp_path, tokenizer):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_trained_bpe_gives_text_back_exactly():
    tokenizer = train_bpe(["low lower lowest\n"] * 10, vocab_size=300)
    for text in ("lower", " é 🦉\x00\r\n\t", "", "  two  spaces ", "never seen: Ωß"):
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids.tolist()) == text


def test_a_trained_bpe_has_the_size_asked_for_or_less():
    varied = [f"{a}{b} " for a in "abcdefgh" for b in "ijklmnop" for _ in range(4)]
    assert train_bpe(varied, vocab_size=280).vocab_size == 280
    poor = train_bpe(["aa aa"], vocab_size=1000)
    assert 257 < poor.vocab_size < 300


def test_bpe_without_merges_is_bytes():
    tokenizer = train_bpe(["abab abab"], vocab_size=257)
    assert tokenizer.vocab_size == 257
    assert tokenizer.encode(["héé"])[0].size == 5


def test_text_that_spells_the_end_of_document_is_text():
    tokenizer = train_bpe(["some text"], vocab_size=257)
    (ids,) = tokenizer.encode(["a<|endoftext|>b"])
    assert tokenizer.end not in ids
    assert tokenizer.decode(ids.tolist()) == "a<|endoftext|>b"
    assert tokenizer.decode([tokenizer.end]) == "<|endoftext|>"


class Watched:
    """A library's tokenizer; what it made of the texts stays in `made`."""

    def __init__(self, inner):
        self.inner, self.made = inner, []

    def __getattr__(self, name):
        def call(*args, **options):
            self.made = getattr(self.inner, name)(*args, **options)
            return self.made

        return call


def test_the_ids_are_encode_batchs_and_places_that_nobody_reads_are_not_made(tmp_path):
    """To note each token's place costs 3 to 25 % more time, by tokenizer."""
    tokenizer = train_bpe(["low lower lowest e\u0301\n"] * 10, vocab_size=300)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.json)
    library = Tokenizer.from_file(str(path))
    library.normalizer = normalizers.NFC()  # moves places, so that they are to be worked out
    path.write_text(library.to_str())
    tokenizer = read_tokenizer(path)
    library.encode_special_tokens = True
    watched = tokenizer._tokenizer = Watched(tokenizer._tokenizer)
    texts = ["e\u0301 lower", "", "a<|endoftext|>b", "\u1e9b\u0323 low \U0001f989\x00\r\n", "  low"]
    expected = library.encode_batch(texts, add_special_tokens=False)
    assert [ids.tolist() for ids in tokenizer.encode(texts)] == [one.ids for one in expected]
    assert any(place != (0, 0) for one in expected for place in one.offsets)
    assert all(place == (0, 0) for one in watched.made for place in one.offsets)


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(DataError) as fault:
        train_bpe(["text"], vocab_size=256)
    assert str(fault.value) == (
        "data.tokenizer.vocab_size=256 is too small for 256 bytes and <|endoftext|>;"
        " set it to 257 or more"
    )


def test_a_file_and_its_xz_are_one_tokenizer(tmp_path):
    path = saved(tmp_path, words("<|endoftext|>", "to", "be"))
    packed = tmp_path / "tokenizer.json.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    plain = read_tokenizer(path)
    assert read_tokenizer(packed).digest == plain.digest
    assert plain.encode(["be to be"])[0].tolist() == [2, 1, 2]
    assert (plain.vocab_size, plain.end) == (3, 0)


def test_the_digest_is_that_of_the_content_not_of_its_spelling(tmp_path):
    path = saved(tmp_path, words("<|endoftext|>", "to", "be"))
    digest = read_tokenizer(path).digest
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    assert read_tokenizer(path).digest == digest
    assert read_tokenizer(saved(tmp_path, words("<|endoftext|>", "be", "to"))).digest != digest


def test_the_size_of_a_vocabulary_with_gaps_is_its_largest_id_and_one(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "to": 900}, unk_token="to"))
    assert read_tokenizer(saved(tmp_path, tokenizer)).vocab_size == 901


@pytest.mark.parametrize("end", ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"])
def test_the_end_of_document_is_found_under_its_usual_names(tmp_path, end):
    assert read_tokenizer(saved(tmp_path, words("to", "be", end))).end == 2


def test_a_tokenizers_own_extras_are_off(tmp_path):
    tokenizer = words("<|endoftext|>", "to", "be", "[START]")
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[START] $A", special_tokens=[("[START]", 3)]
    )
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    assert read_tokenizer(saved(tmp_path, tokenizer)).encode(["be to be to"])[0].tolist() == [
        2,
        1,
        2,
        1,
    ]


def test_a_tokenizer_without_an_end_of_document_is_refused(tmp_path):
    path = saved(tmp_path, words("to", "be"))
    with pytest.raises(DataError) as fault:
        read_tokenizer(path)
    assert str(fault.value) == (
        f"{path} has no end-of-document token (looked for <|endoftext|>, <|end_of_text|>, </s>,"
        " <eos>); add one of them to its added_tokens, or set data.tokenizer.kind=bpe"
    )


def test_a_word_that_a_tokenizer_cannot_encode_is_refused(tmp_path):
    path = saved(tmp_path, words("<|endoftext|>", "to", unknown="[UNK]"))
    with pytest.raises(
        DataError, match=r"cannot encode this corpus: .*UNK.*; set data.tokenizer to"
    ):
        read_tokenizer(path).encode(["not to"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not a tokenizer.json: "),
        (b"\xff\xfe", "is not a tokenizer.json: "),
        (b"{}", "is not a tokenizer.json that `tokenizers` can load: "),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path, content, reason):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as fault:
        read_tokenizer(path)
    assert str(fault.value).startswith(f"{path} {reason}")


def test_what_is_no_xz_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json.xz"
    path.write_bytes(b"{}")
    with pytest.raises(DataError, match=r"tokenizer.json.xz is not a tokenizer.json: "):
        read_tokenizer(path)


def test_a_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot read tokenizer .*x.json: No such file"):
        read_tokenizer(tmp_path / "x.json")
