"""Real text and real tokenizers, where the folders of `data.roots` have them."""

import json
import lzma
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from pww.config import paths
from pww.config.load import compose
from pww.data import prepare
from pww.data.sources import open_source
from pww.data.split import section_length
from pww.errors import DataError

TOKENIZERS = {
    "tokenizers/gpt2/tokenizer.json": (50_257, "uint16"),
    "tokenizers/gpt_neox_20b/tokenizer.json": (50_280, "uint16"),
    "tokenizers/olmo_dolma2/tokenizer.json": (100_278, "uint32"),
    "tokenizers/qwen/tokenizer.json.xz": (151_669, "uint32"),
}
SHARE, SEQ_LEN, DOCUMENTS = 0.1, 64, 60


def there(name: str) -> Path:
    for root in compose().data.roots:
        path = paths.PROJECT / root / name
        if root and path.is_file():
            return path
    pytest.skip(f"no {name} below data.roots")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_are_the_librarys_own_of_the_documents_joined_by_the_end(name, settings, tmp_path):
    path = there(name)
    pages = there("text/c4/c4_en_train_first1000.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "text" / "c4.jsonl").write_bytes(b"".join(pages[:DOCUMENTS]))
    data = settings(
        kind="jsonl", files=("c4.jsonl",), held_out=SHARE,
        tokenizer={"kind": "file", "path": str(path)},
    )  # fmt: skip
    corpus = prepare(data, seq_len=SEQ_LEN, vocab_multiple=256, project=tmp_path)
    made = corpus.manifest
    assert (made.vocab_size, made.dtype) == TOKENIZERS[name]

    raw = path.read_bytes()
    library = Tokenizer.from_str((lzma.decompress(raw) if path.suffix == ".xz" else raw).decode())
    end = library.token_to_id("<|endoftext|>")
    assert made.end_of_document == end
    texts = [json.loads(page)["text"] for page in pages[:DOCUMENTS]]
    # The fifth section is the first that is held out: documents that end before it are as they were
    size = section_length(sum(map(len, texts)), held_out=SHARE, window_tokens=SEQ_LEN + 1)
    ends = np.cumsum([len(text) for text in texts])
    whole = [
        text for text, _ in takewhile(lambda x: x[1] <= 4 * size, zip(texts, ends, strict=True))
    ]
    expected = [
        i for text in whole for i in [*library.encode(text, add_special_tokens=False).ids, end]
    ]
    assert len(whole) > 2
    num = len(expected) // (SEQ_LEN + 1)
    rows = np.array(expected[: num * (SEQ_LEN + 1)]).reshape(num, SEQ_LEN + 1)
    assert np.array_equal(corpus.windows(range(num)), rows)
    assert corpus.decode(rows[0]) == library.decode(rows[0].tolist(), skip_special_tokens=False)


@pytest.mark.parametrize("corpus", ["c4", "wikitext2", "gutenberg", "tinyshakespeare"])
def test_the_shipped_corpora_find_their_files(corpus):
    config = compose([f"data={corpus}"])
    try:
        source = open_source(config.data, project=paths.PROJECT)
    except DataError as fault:
        pytest.skip(str(fault))
    first = next(source.read(source.pieces()[0].spans))
    assert len(first) > 100
