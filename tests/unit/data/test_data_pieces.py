import json

import pytest

from pww.data.digest import BASE, PRIME, DocumentsDigest
from pww.data.pieces import MAX_PIECES, PIECE_BYTES, Piece, Span, piece_bytes, rule
from pww.data.sources import JsonLineFiles, TextFiles
from pww.errors import DataError


def test_small_spans_are_joined_and_large_ones_stay_whole(monkeypatch):
    mb = 1 << 20
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 8 * mb)
    sizes = [3, 3, 3, 20, 1, 1]
    spans = [(Span(i), size * mb) for i, size in enumerate(sizes)]
    pieces = rule(spans, total_bytes=sum(sizes) * mb)
    assert [[span.file for span in piece.spans] for piece in pieces] == [[0, 1], [2], [3], [4, 5]]
    assert [piece.size_bytes for piece in pieces] == [6 * mb, 3 * mb, 20 * mb, 2 * mb]
    assert rule([], total_bytes=0) == ()
    assert rule([(Span(0), 0)], total_bytes=0) == (Piece((Span(0),), 0),)


def test_a_huge_corpus_has_pieces_that_can_be_counted():
    assert piece_bytes(10**9) == PIECE_BYTES
    assert piece_bytes(10**13) == -(-(10**13) // MAX_PIECES)


@pytest.fixture
def rows(tmp_path):
    """Two plain files and a packed one, and what they hold."""
    import gzip

    texts, paths = [], []
    for name, num in (("a.jsonl", 50), ("b.jsonl", 1), ("c.jsonl.gz", 20)):
        part = [f"{name} {i} " + "é" * (i % 7) for i in range(num)]
        data = "\n\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in part).encode()
        paths.append(tmp_path / name)
        paths[-1].write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        texts += part
    return paths, texts


@pytest.mark.parametrize("size", [1, 30, 64, 200, 10**6])
def test_however_json_lines_are_ruled_each_is_in_one_piece(rows, monkeypatch, size):
    paths, texts = rows
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", size)
    monkeypatch.setattr("pww.data.pieces.MAX_PIECES", 10**6)
    source = JsonLineFiles(paths)
    pieces = source.pieces()
    assert [text for piece in pieces for text in source.read(piece.spans)] == texts
    assert sum(piece.size_bytes for piece in pieces) == sum(p.stat().st_size for p in paths)
    assert len([p for p in pieces if any(span.file == 2 for span in p.spans)]) == 1


def test_text_files_are_never_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 1)
    for name in "ab":
        (tmp_path / name).write_text(name * 100)
    source = TextFiles([tmp_path / "a", tmp_path / "b"])
    assert [list(source.read(piece.spans)) for piece in source.pieces()] == [
        ["a" * 100],
        ["b" * 100],
    ]


def test_a_bad_line_has_its_number_in_any_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 40)
    path = tmp_path / "a.jsonl"
    good = json.dumps({"text": "fine"})
    path.write_text("\n".join([good] * 9 + ["{"] + [good] * 3))
    source = JsonLineFiles([path])
    assert len(source.pieces()) > 4
    with pytest.raises(DataError, match=f"{path} line 10 is not JSON"):
        [list(source.read(piece.spans)) for piece in source.pieces()]


def test_another_key_is_read_and_is_in_the_fingerprint(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "body": "b"}\n')
    sources = [JsonLineFiles([path], column=name) for name in ("text", "body")]
    assert [list(one.read([Span(0)])) for one in sources] == [["a"], ["b"]]
    assert sources[0].fingerprint() != sources[1].fingerprint()


def test_the_digest_is_the_polynomial_of_its_documents():
    import hashlib

    texts = [b"one", b"two", b"", b"two"]
    own = [int.from_bytes(hashlib.sha256(text).digest(), "little") for text in texts]
    digest = DocumentsDigest()
    for text in texts:
        digest = digest.then(text)
    value = sum(h * BASE ** (3 - i) for i, h in enumerate(own)) % PRIME
    assert (digest.num, digest.value) == (4, value)
    assert digest.hex == hashlib.sha256(f"4 {value:x}".encode()).hexdigest()
    assert BASE not in (0, 1, PRIME - 1)
