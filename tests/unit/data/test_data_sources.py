import gzip
import json

import pytest

from pww.data.files import find_files
from pww.data.pydocs import PythonDocs
from pww.data.sources import JsonLineFiles, TextFiles, documents, open_source
from pww.errors import DataError


def text_files(folder, **contents):
    for name, content in contents.items():
        (folder / f"{name}.txt").write_bytes(content)
    return [folder / f"{name}.txt" for name in contents]


def json_file(folder, *rows, name="docs.jsonl"):
    data = b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows)
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


# ---------------------------------------------------------------------------------- finding files


def test_the_first_root_that_has_a_match_is_used_for_each_glob(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    text_files(tmp_path / "one", a=b"1")
    text_files(tmp_path / "two", a=b"2", b=b"3")
    found = find_files(["a.txt", "b.*"], roots=["none", "one", "", "two"], project=tmp_path)
    assert found == ((tmp_path / "one/a.txt").resolve(), (tmp_path / "two/b.txt").resolve())


def test_files_are_sorted_by_name_and_each_counts_once(tmp_path):
    (tmp_path / "z").mkdir()
    text_files(tmp_path, b=b"", a=b"")
    text_files(tmp_path / "z", c=b"")
    found = find_files(["b.txt", "**/*.txt"], roots=["."], project=tmp_path)
    assert [path.name for path in found] == ["a.txt", "b.txt", "c.txt"]


def test_an_absolute_glob_needs_no_root(tmp_path):
    (path,) = text_files(tmp_path, a=b"")
    assert find_files([str(path)], roots=["else"], project=tmp_path / "x") == (path.resolve(),)


def test_missing_files_name_every_folder_and_the_remedy(tmp_path):
    (tmp_path / "one" / "a.txt").mkdir(parents=True)  # a folder is not a file
    with pytest.raises(DataError) as fault:
        find_files(["a.txt"], roots=["one", "/nowhere"], project=tmp_path)
    assert str(fault.value) == (
        f"no file matches 'a.txt' (data.files); looked in {tmp_path / 'one'}, /nowhere; set"
        " data.roots, or the environment variable PWW_DATA, to the folder that holds it"
    )
    with pytest.raises(
        DataError, match=r"looked in no folder \(data.roots is empty\); set data.roots"
    ):
        find_files(["a.txt"], roots=[""], project=tmp_path)


def test_no_glob_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data.files=\[\] names no file; give at least one glob"):
        find_files([], roots=["."], project=tmp_path)


@pytest.mark.parametrize(
    "packed", [("c4.json.gz",), ("c4.json.zst",), ("c4.json.gz", "c4.json.zst")]
)
def test_a_text_that_is_there_packed_and_unpacked_is_refused(tmp_path, packed):
    """Each of its documents would be trained on twice."""
    names = ["c4.json", *packed][-2:]
    for name in [*names, "c5.json.gz"]:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as fault:
        find_files(["*.json*"], roots=["."], project=tmp_path)
    assert str(fault.value) == (
        f"{names[0]!r} and {names[1]!r} (data.files) differ only in how they are packed, so every"
        " document of them would be there twice; remove one of them, or name one kind in"
        " data.files, such as '*.json.gz'"
    )
    (tmp_path / names[0]).unlink()
    assert len(find_files(["*.json*"], roots=["."], project=tmp_path)) == 2


def test_files_for_pydocs_are_refused(settings, tmp_path):
    with pytest.raises(DataError, match=r"data.files=\['x'\] has no meaning for data.kind=pydocs"):
        open_source(settings(kind="pydocs", files=("x",)), project=tmp_path)


def test_each_kind_has_its_source(settings, tmp_path):
    text_files(tmp_path / "text", a=b"")
    assert isinstance(open_source(settings(kind="pydocs", files=()), project=tmp_path), PythonDocs)
    assert isinstance(open_source(settings(kind="text"), project=tmp_path), TextFiles)
    assert isinstance(open_source(settings(kind="jsonl"), project=tmp_path), JsonLineFiles)


# ------------------------------------------------------------------------------------- plain text


def test_a_text_file_is_one_document_kept_byte_for_byte(tmp_path):
    content = "one\r\ntwo\n\né\ufeff🦉\u2028end".encode()
    source = TextFiles(text_files(tmp_path, a=content, b=b"", c=b"last\n"))
    for _ in range(2):  # it can be read again
        assert [text.encode() for text in documents(source)] == [content, b"", b"last\n"]


def test_a_packed_text_file_is_unpacked(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo"))
    assert list(documents(TextFiles([tmp_path / "a.txt.gz"]))) == ["one\ntwo"]


def test_invalid_utf8_names_file_line_and_byte(tmp_path):
    (path,) = text_files(tmp_path, a=b"fine\nok \xe9 no\n")
    with pytest.raises(DataError) as fault:
        list(documents(TextFiles([path])))
    assert str(fault.value) == (
        f"{path} line 2 is not UTF-8: byte 0xe9 in column 4;"
        " convert it, for instance with `iconv -t UTF-8`"
    )


def test_a_missing_or_torn_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*x.txt: .*No such file"):
        list(documents(TextFiles([tmp_path / "x.txt"])))
    with pytest.raises(DataError, match=r"cannot read .*x.txt: No such file"):
        TextFiles([tmp_path / "x.txt"]).fingerprint()
    torn = tmp_path / "a.txt.gz"
    torn.write_bytes(gzip.compress(b"text" * 100)[:-10])
    with pytest.raises(DataError, match=r"cannot read .*a.txt.gz: "):
        list(documents(TextFiles([torn])))
    torn.write_bytes(b"not gzip")
    with pytest.raises(DataError, match=r"cannot read .*a.txt.gz: Not a gzipped file"):
        list(documents(TextFiles([torn])))


def test_the_fingerprint_follows_content_and_order_not_names(tmp_path):
    a, b, c = text_files(tmp_path, a=b"1", b=b"2", c=b"1")
    first = TextFiles([a, b]).fingerprint()
    assert TextFiles([c, b]).fingerprint() == first
    assert TextFiles([b, a]).fingerprint() != first
    assert JsonLineFiles([a, b]).fingerprint() != first
    a.write_bytes(b"12")
    assert TextFiles([a, b]).fingerprint() != first


# ------------------------------------------------------------------------------------- JSON lines


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_text_of_each_line_is_a_document(tmp_path, name):
    path = json_file(tmp_path, {"text": "one\n", "url": "x"}, b"\n  \n", {"text": ""}, name=name)
    assert list(documents(JsonLineFiles([path]))) == ["one\n", ""]


def test_a_null_is_an_empty_document_as_in_parquet(tmp_path):
    path = json_file(tmp_path, {"text": "a"}, {"text": None}, {"text": "b"})
    assert list(documents(JsonLineFiles([path]))) == ["a", "", "b"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "x"', "is not JSON: Expecting"),
        (b"[" * 200_000, "is not JSON: maximum recursion depth"),
        (b'{"t": 1, "a": 2}', "has no string under 'text' (it has ['a', 't'])"),
        (b'{"text": 1}', "has no string under 'text' (it has ['text'])"),
        (b'"text"', "has no string under 'text' (it has str)"),
        (b'{"text": "\xff"}', "is not UTF-8: byte 0xff in column 11; convert it"),
        (b'{"text": "a\\ud800"}', ": '\\ud800' in 'text' is half a character (a lone surrogate)"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    path = json_file(tmp_path, {"text": "fine"}, line)
    with pytest.raises(DataError) as fault:
        list(documents(JsonLineFiles([path])))
    assert str(fault.value).startswith(f"{path} line 2")
    assert reason in str(fault.value)
