import ctypes
import hashlib
import io
import mmap
import os
import time

import numpy as np
import pytest

from pww.data.manifest import Shard
from pww.data.shards import Shards, ShardWriter, dtype_for
from pww.errors import DataError


def write(folder, tokens, *, width=5, dtype="uint16", shard_bytes=1 << 30):
    with ShardWriter(
        folder, stem="train", window_tokens=width, dtype=dtype, shard_bytes=shard_bytes
    ) as writer:
        writer.add(np.asarray(tokens, np.uint32))
        return writer.finish()


def opened(folder, shards, *, width=5, dtype="uint16"):
    return Shards(folder, shards, window_tokens=width, dtype=dtype, what="training")


def test_windows_follow_each_other_and_the_tail_is_left_out(tmp_path):
    reader = opened(tmp_path, write(tmp_path, range(13)))
    assert len(reader) == 2
    windows = reader.read([1, 0, 1])
    assert windows.dtype == np.int64
    assert windows.tolist() == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert reader.read([]).shape == (0, 5)


def test_a_shard_is_a_plain_npy_file_with_the_stated_size_and_digest(tmp_path):
    (shard,) = write(tmp_path, range(13))
    data = (tmp_path / shard.name).read_bytes()
    assert shard == Shard(
        name="train-00000.npy",
        windows=2,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    array = np.load(io.BytesIO(data))
    assert array.dtype == np.dtype("<u2")
    assert array.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_stream_of_many_shards_reads_as_one(tmp_path):
    shards = write(tmp_path, range(53), shard_bytes=3 * 5 * 2)
    assert [shard.windows for shard in shards] == [3, 3, 3, 1]
    reader = opened(tmp_path, shards)
    assert reader.read(range(10)).reshape(-1).tolist() == list(range(50))
    assert reader.read([9, 0, 3, 2]).tolist() == [
        list(range(5 * i, 5 * i + 5)) for i in (9, 0, 3, 2)
    ]
    assert reader.read([]).shape == (0, 5)


def test_too_few_tokens_make_no_shard(tmp_path):
    assert write(tmp_path, range(4)) == ()
    assert len(opened(tmp_path, ())) == 0


def test_a_writer_that_is_cut_off_closes_its_file(tmp_path):
    def cut_off():
        with ShardWriter(tmp_path, stem="train", window_tokens=5, dtype="uint16") as writer:
            writer.add(np.zeros(1 << 20, np.uint32))
            raise KeyboardInterrupt  # a file left open would be a ResourceWarning: an error here

    with pytest.raises(KeyboardInterrupt):
        cut_off()


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(65_500, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (128_256, "uint32")],
)
def test_the_type_changes_at_65_536_ids(tmp_path, vocab_size, dtype):
    assert dtype_for(vocab_size) == dtype
    shards = write(tmp_path, [vocab_size - 1] * 5, dtype=dtype)
    assert opened(tmp_path, shards, dtype=dtype).read([0]).tolist() == [[vocab_size - 1] * 5]


def test_a_shard_over_4_gib_reads_its_last_window(tmp_path):
    width, windows = 2049, (1 << 32) // (2049 * 2) + 10
    path = tmp_path / "train-00000.npy"
    last = np.arange(width, dtype="<u2")
    with path.open("wb") as file:
        header = {"descr": "<u2", "fortran_order": False, "shape": (windows, width)}
        np.lib.format.write_array_header_1_0(file, header)
        file.seek((windows - 1) * width * 2, io.SEEK_CUR)  # a hole: the file takes no space
        file.write(last.tobytes())
        size = file.tell()
    assert size > 1 << 32
    shard = Shard(name=path.name, windows=windows, size_bytes=size, sha256="0" * 64)
    reader = opened(tmp_path, [shard], width=width)
    assert np.array_equal(reader.read([windows - 1])[0], last)
    assert not reader.read([windows - 2]).any()


@pytest.mark.parametrize("bad", [-1, 2, 1 << 40])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 10])
def test_an_id_out_of_range_is_refused(tmp_path, bad, shard_bytes):
    reader = opened(tmp_path, write(tmp_path, range(13), shard_bytes=shard_bytes))
    with pytest.raises(DataError) as fault:
        reader.read([0, bad])
    assert str(fault.value) == (
        f"training window {bad} does not exist: this corpus has 2, counted from 0;"
        " the ids come from another corpus"
    )


def test_a_cut_shard_is_refused_with_both_sizes(tmp_path):
    (shard,) = write(tmp_path, range(13))
    path = tmp_path / shard.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError) as fault:
        opened(tmp_path, [shard])
    assert str(fault.value) == (
        f"{path} has {shard.size_bytes - 1} bytes, its manifest says {shard.size_bytes};"
        f" delete {tmp_path} and start again"
    )


def test_a_missing_shard_is_refused(tmp_path):
    (shard,) = write(tmp_path, range(13))
    (tmp_path / shard.name).unlink()
    with pytest.raises(DataError, match=r"cannot read shard .*train-00000.npy: No such file"):
        opened(tmp_path, [shard])


def test_what_is_no_npy_file_is_refused(tmp_path):
    (shard,) = write(tmp_path, range(13))
    (tmp_path / shard.name).write_bytes(b"x" * shard.size_bytes)
    with pytest.raises(DataError, match=r"train-00000.npy is not a shard \(.*\); delete"):
        opened(tmp_path, [shard])


def test_a_header_that_disagrees_is_refused_with_both_values(tmp_path):
    (shard,) = write(tmp_path, range(12), width=6)  # 24 bytes of data, as 2 x 6 of 16 bits
    with pytest.raises(
        DataError, match=r"holds uint16 \(2, 6\), its manifest says uint16 \(2, 5\)"
    ):
        opened(tmp_path, [shard], width=5)
    with pytest.raises(
        DataError, match=r"holds uint16 \(2, 6\), its manifest says uint32 \(2, 6\)"
    ):
        opened(tmp_path, [shard], width=6, dtype="uint32")


def in_memory(path) -> list[bool]:
    """Which pages of a file the kernel holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        held = (ctypes.c_ubyte * pages)()
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        found = libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), held)
        assert found == 0, os.strerror(ctypes.get_errno())
    return [bool(one & 1) for one in held]


def forget(path) -> None:
    """Has the kernel drop a file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_expected_windows_are_read_ahead_and_no_others(tmp_path):
    """Two shards of 64 windows of a page each; what lies between is left where it is."""
    width = mmap.PAGESIZE // 2
    shards = write(tmp_path, np.arange(128 * width) % 9, width=width, shard_bytes=64 * 2 * width)
    reader = opened(tmp_path, shards, width=width)
    paths = [tmp_path / shard.name for shard in shards]
    for path in paths:
        forget(path)
    if any(any(in_memory(path)[2:]) for path in paths):
        pytest.skip("this file system keeps what it holds in memory")
    reader.expect([40, 20, 21, 22, 100, 101, 5_000, -1])
    deadline_s = time.monotonic() + 10
    wanted = {0: {20, 21, 22, 40}, 1: {36, 37}}
    while time.monotonic() < deadline_s:
        held = [{i for i, one in enumerate(in_memory(path)) if one} for path in paths]
        if all(rows <= held[shard] for shard, rows in wanted.items()):
            break
    for shard, rows in wanted.items():
        # rows begin behind the header: each lies in two pages
        assert rows | {row + 1 for row in rows} <= held[shard]
        assert not held[shard] & {5, 10, 15, 30, 50, 60}


def test_a_hint_that_cannot_be_given_is_none(tmp_path):
    shards = write(tmp_path, range(50), shard_bytes=3 * 5 * 2)
    reader = opened(tmp_path, shards)
    for shard in shards:
        (tmp_path / shard.name).unlink()
    reader.expect(range(10))
    reader.expect([])
    assert reader.read([9]).tolist() == [[45, 46, 47, 48, 49]]
