import json
import sys

import pytest

from pww.data import prepare
from pww.data.parquet import ParquetFiles
from pww.data.sources import documents, open_source
from pww.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def table(tmp_path):
    """Writes `text/<name>` with these columns."""

    def make(name, *, rows_a_group=3, **columns):
        path = tmp_path / "text" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=rows_a_group)
        return path

    return make


TEXTS = ["one\n", "", "dré\u2028i", "vier", "fünf", "six", "🦉"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_each_row_is_a_document_in_order(table, kind):
    first = table("a.parquet", text=pa.array(TEXTS, kind), url=["x"] * 7)
    second = table("b.parquet", n=[1], text=["last"])
    source = ParquetFiles([first, second], column="text")
    for _ in range(2):  # it can be read again
        assert list(documents(source)) == [*TEXTS, "last"]


def test_a_piece_is_a_run_of_row_groups(table, monkeypatch):
    monkeypatch.setattr("pww.data.pieces.PIECE_BYTES", 1)
    source = ParquetFiles([table("a.parquet", text=TEXTS)], column="text")
    found = [list(source.read(piece.spans)) for piece in source.pieces()]
    assert found == [TEXTS[:3], TEXTS[3:6], TEXTS[6:]]


def test_a_null_is_an_empty_document(table):
    path = table("a.parquet", body=["a", None, "b"])
    assert list(documents(ParquetFiles([path], column="body"))) == ["a", "", "b"]


def test_a_column_in_parquet_and_in_json_lines_is_one_corpus(table, settings, tmp_path, lines):
    rows = [lines(i, i + 40) for i in range(0, 800, 40)]
    table("a.parquet", body=rows)
    (tmp_path / "text" / "a.jsonl").write_text(
        "".join(json.dumps({"body": row}) + "\n" for row in rows)
    )
    made = [
        prepare(
            settings(kind=kind, files=(f"*.{kind}",), column="body"),
            seq_len=16, vocab_multiple=1, project=tmp_path,
        ).manifest
        for kind in ("parquet", "jsonl")
    ]  # fmt: skip
    assert made[0].digest == made[1].digest
    assert made[0].num_documents == 20


def test_the_column_is_in_the_fingerprint(table):
    path = table("a.parquet", text=["a"], body=["b"])
    found = {ParquetFiles([path], column=name).fingerprint() for name in ("text", "body")}
    assert len(found) == 2


def test_a_missing_column_is_refused_with_those_there_are(table):
    path = table("a.parquet", text=["a"], url=["x"])
    with pytest.raises(DataError) as fault:
        ParquetFiles([path], column="content").pieces()
    assert str(fault.value) == (
        f"{path} has no column 'content' (it has ['text', 'url']); data.column names the one that"
        " holds the text"
    )


def test_a_column_of_numbers_is_refused(table):
    path = table("a.parquet", text=[1, 2])
    with pytest.raises(DataError) as fault:
        ParquetFiles([path], column="text").pieces()
    assert str(fault.value) == (
        f"{path}: column 'text' holds int64, not text; data.column names the one that does"
    )


def test_what_is_no_parquet_is_refused(table, tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"no table" * 100)
    with pytest.raises(DataError, match=r"cannot read .*a.parquet: .*[Pp]arquet"):
        ParquetFiles([path], column="text").pieces()


def test_a_damaged_page_is_refused(table):
    path = table("a.parquet", text=["many words " * 50, "others"])
    source = ParquetFiles([path], column="text")
    source.pieces()
    data = bytearray(path.read_bytes())
    data[4:40] = b"\xff" * 36
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot read .*a.parquet: "):
        list(documents(source))


def test_without_pyarrow_the_extra_is_named(settings, table, tmp_path, monkeypatch):
    table("a.parquet", text=["a"])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError) as fault:
        open_source(settings(kind="parquet", files=("*.parquet",)), project=tmp_path)
    assert str(fault.value).startswith("data.kind=parquet needs pyarrow, which cannot be imported")
    assert str(fault.value).endswith("; pip install 'pww[parquet]'")
