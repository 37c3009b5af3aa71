import gzip
import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

import pww.data.files
from pww.data.files import fingerprint, line_number, lines, opened, sizes
from pww.errors import DataError

TEXT = b"".join(b"line %d\r\n" % i for i in range(20_000)) + "é\u2028 last".encode()


def zst(data):
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.txt", lambda data: data),
        ("a.txt.gz", gzip.compress),
        ("a.txt.zst", zst),
        ("a.txt.gz", lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:])),
        ("a.txt.zst", lambda data: zst(data[:999]) + zst(b"") + zst(data[999:])),
    ],
)
def test_a_packed_file_reads_as_what_was_packed(tmp_path, monkeypatch, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(TEXT))
    with opened(path) as file:
        assert file.read() == TEXT
    monkeypatch.setattr(pww.data.files, "BUFFER_BYTES", 17)  # frames end within blocks, and on them
    assert b"".join(lines(path)) == TEXT
    assert [line.endswith(b"\n") for line in lines(path)] == [True] * 20_000 + [False]


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_an_empty_packed_text_is_empty(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"") if name.endswith("gz") else zst(b""))
    assert list(lines(path)) == []


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_a_packed_file_of_no_bytes_is_a_damaged_one(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(DataError) as fault:
        list(lines(path))
    assert str(fault.value) == (
        f"cannot read {path}: the file has 0 bytes, and even no text at all has more when it is"
        " packed"
    )


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999])
def test_a_cut_zst_is_refused_and_not_taken_for_a_short_one(tmp_path, keep):
    path = tmp_path / "a.zst"
    data = zst(TEXT)
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DataError) as fault:
        list(lines(path))
    assert str(fault.value) == (
        f"cannot read {path}: the file ends in the middle of its packed text"
    )
    path.write_bytes(zst(b"whole\n") + data[:10])  # a later stream is cut
    with pytest.raises(DataError, match="ends in the middle of its packed text"):
        list(lines(path))


def test_what_is_no_zst_is_refused(tmp_path):
    path = tmp_path / "a.zst"
    path.write_bytes(b"plain text")
    with pytest.raises(DataError, match=r"cannot read .*a.zst: .*[Uu]nknown frame descriptor"):
        list(lines(path))


def test_a_damaged_zst_is_refused(tmp_path):
    path = tmp_path / "a.zst"
    data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"cannot read .*a.zst: zstd"):
        list(lines(path))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_every_line_begins_in_one_range_and_has_its_number(tmp_path, step):
    path = tmp_path / "a.txt"
    data = b"one\n\n\ntwo and more\nx\n" + b"y" * 30 + b"\nlast"
    path.write_bytes(data)
    found = []
    for start in range(0, len(data), step):
        for nth, line in enumerate(lines(path, start, start + step), 1):
            found.append(line)
            assert line_number(path, start, nth) == len(found)
    assert found == data.splitlines(keepends=True)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*gone: No such file"):
        sizes([tmp_path / "gone"])
    with pytest.raises(DataError, match=r"cannot read .*gone: No such file"):
        fingerprint("text", [tmp_path / "gone"])


def test_the_fingerprint_is_of_the_digests_in_order(tmp_path):
    paths = [tmp_path / f"{i}" for i in range(20)]
    for i, path in enumerate(paths):
        path.write_bytes(b"%d" % i * (20 - i) * 1000)
    total = hashlib.sha256(b"kind")
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    with ThreadPoolExecutor(2) as pool:
        found = set(pool.map(lambda _: fingerprint("kind", paths), range(8)))
    assert found == {total.hexdigest()}
