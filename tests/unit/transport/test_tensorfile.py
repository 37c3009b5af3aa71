"""Tensor files: what was written is read, by us and by the library; damage is refused."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from blake3 import blake3

from pww.errors import PayloadError
from pww.transport.header import MAX_HEADER
from pww.transport.memory import aligned_buffer
from pww.transport.tensorfile import StateHash, TensorReader, TensorWriter, state_hash

TENSORS = {
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "odd": torch.arange(3, dtype=torch.uint8),
    "half": torch.arange(7, dtype=torch.bfloat16),
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "ids": torch.arange(5),
}


def write(path: Path, tensors=TENSORS, metadata=None):
    layout = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    with TensorWriter(path, layout, metadata or {"who": "us"}) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        return writer.close()


def raw(path: Path, header, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_what_was_written_is_read(tmp_path):
    written = write(tmp_path / "a.safetensors")
    with TensorReader(tmp_path / "a.safetensors") as reader:
        assert reader.names == tuple(TENSORS)
        assert reader.metadata == {"who": "us"}
        assert (reader.size_bytes, reader.digest()) == (written.size_bytes, written.digest)
        for name, tensor in TENSORS.items():
            assert (reader.shape(name), reader.dtype(name)) == (tuple(tensor.shape), tensor.dtype)
            assert torch.equal(reader.get(name), tensor)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_the_library_reads_our_files(tmp_path):
    write(tmp_path / "a.safetensors")
    theirs = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert theirs.keys() == TENSORS.keys()
    assert all(torch.equal(theirs[name], TENSORS[name]) for name in TENSORS)
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as opened:
        assert opened.metadata() == {"who": "us"}


def test_we_read_the_librarys_files(tmp_path):
    safetensors.torch.save_file(TENSORS, tmp_path / "b.safetensors", metadata={"a": "b"})
    with TensorReader(tmp_path / "b.safetensors") as reader:
        assert set(reader.names) == set(TENSORS)
        assert all(torch.equal(reader.get(name), TENSORS[name]) for name in TENSORS)


def test_a_tensor_of_many_chunks_and_a_view_of_one(tmp_path):
    big = torch.arange(3_000_000, dtype=torch.float32).reshape(1500, 2000)
    write(tmp_path / "c.safetensors", {"big": big, "turned": big.t()})
    with TensorReader(tmp_path / "c.safetensors") as reader:
        assert torch.equal(reader.get("big"), big)
        assert torch.equal(reader.get("turned"), big.t())


@pytest.mark.parametrize("name", ["x" * size for size in (1, 20, 41, 62, 63, 64, 65)])
def test_the_data_starts_at_a_cache_line(tmp_path, name):
    write(tmp_path / "a.safetensors", {name: torch.tensor([1.0])})
    length = int.from_bytes((tmp_path / "a.safetensors").read_bytes()[:8], "little")
    assert (8 + length) % 64 == 0
    assert safetensors.torch.load_file(tmp_path / "a.safetensors")[name] == 1.0


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000])
def test_buffers_begin_with_a_page_and_can_be_written(size):
    buffer = aligned_buffer(size)
    assert len(buffer) == size
    assert not buffer.readonly
    assert np.frombuffer(aligned_buffer(size + 1), dtype=np.uint8).ctypes.data % 4096 == 0


def layout_of(*names):
    return dict.fromkeys(names, (torch.float32, (2,)))


@pytest.mark.parametrize(
    ("adds", "text"),
    [
        ([("b", torch.zeros(2))], "tensor b comes where a was announced"),
        ([("a", torch.zeros(3))], r"tensor a is torch.float32 \(3,\), announced were"),
        ([("a", torch.zeros(2, dtype=torch.float64))], r"tensor a is torch.float64 \(2,\), annou"),
        ([("a", torch.zeros(2))], "tensor b was announced and never came"),
        ([("a", torch.zeros(2)), ("b", torch.zeros(2)), ("c", torch.zeros(2))],
         "tensor c comes where the end was announced"),
    ],
)  # fmt: skip
def test_what_differs_from_the_announcement_leaves_nothing(tmp_path, adds, text):
    tensors = dict(adds)

    def attempt():
        with TensorWriter(tmp_path / "x", layout_of("a", "b"), {}) as writer:
            for name, tensor in tensors.items():
                writer.add(name, tensor)

    with pytest.raises(PayloadError, match=text):
        attempt()
    assert list(tmp_path.iterdir()) == []


def test_a_fault_in_the_block_leaves_the_old_file(tmp_path):
    write(tmp_path / "x", {"a": torch.ones(2)})
    with pytest.raises(KeyError), TensorWriter(tmp_path / "x", layout_of("a"), {}):
        raise KeyError
    assert os.listdir(tmp_path) == ["x"]
    with TensorReader(tmp_path / "x") as reader:
        assert reader.get("a").tolist() == [1.0, 1.0]


def test_a_tensor_in_pieces_is_the_same_file(tmp_path):
    tensors = {"a": torch.arange(10.0).reshape(2, 5), "none": torch.empty(0), "b": torch.ones(3)}
    layout = {name: (torch.float32, tuple(t.shape)) for name, t in tensors.items()}
    with TensorWriter(tmp_path / "whole", layout, {}) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    pieces = TensorWriter(tmp_path / "pieces", layout, {})
    for start in range(0, 10, 3):
        pieces.extend("a", tensors["a"].reshape(-1)[start : start + 3])
        pieces.flush()
    pieces.extend("none", tensors["none"])
    pieces.add("b", tensors["b"])
    written = pieces.close()
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()
    assert written.digest == state_hash(tmp_path / "whole")
    with TensorReader(tmp_path / "pieces") as reader:
        assert reader.digest() == written.digest
        out = torch.empty(4)
        reader.read("a", out, start=5)
        assert out.tolist() == [5.0, 6.0, 7.0, 8.0]
        assert (reader.size("a"), reader.size("none")) == (10, 0)
        with pytest.raises(PayloadError, match=r"tensor a is torch.float32, expected was"):
            reader.read("a", out.double())


def test_pieces_that_do_not_add_up(tmp_path):
    def attempt(*steps):
        writer = TensorWriter(tmp_path / "x", {"a": (torch.float32, (4,)), **layout_of("b")}, {})
        for name, values in steps:
            writer.extend(name, values)
        writer.close()

    two = torch.ones(2)
    for steps, text in (
        ((("a", two), ("a", torch.ones(3))), "tensor a: 12 bytes of torch.float32 come where 8 of"),
        (
            (("a", two), ("a", two.double())),
            "16 bytes of torch.float64 come where 8 of",
        ),
        ((("a", two), ("b", two)), "tensor b comes where a was announced"),
        ((("b", two),), "tensor b comes where a was announced"),
        ((("a", two),), "tensor a was announced and never came"),
        ((("a", two), ("a", two)), "tensor b was announced and never came"),
    ):
        with pytest.raises(PayloadError, match=text):
            attempt(*steps)
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_its_digest(tmp_path):
    layout = {"a": (torch.float32, (1,))}
    with TensorWriter(tmp_path / "x", layout, {}, hashed=False) as writer:
        writer.add("a", torch.ones(1))
        assert writer.close().digest == ""


def test_the_state_hash_is_pinned(tmp_path):
    """BLAKE3 over the plain file, its header written down here by hand."""
    header = (
        b'{"__metadata__":{},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
        b'"b":{"dtype":"F32","shape":[],"data_offsets":[8,12]}}'
    )
    header += b" " * (-(8 + len(header)) % 64)
    data = np.array([1.0, -2.5, 0.0], dtype="<f4").tobytes()
    expected = blake3(len(header).to_bytes(8, "little") + header + data).hexdigest()
    state = StateHash({"w": (2, 1), "b": ()})
    state.add("w", torch.tensor([[1.0], [-2.5]]))
    state.add("b", torch.tensor(0.0))
    assert state.hexdigest() == expected
    with pytest.raises(PayloadError, match="a state is fp32 throughout"):
        StateHash({"w": (1,)}).add("w", torch.ones(1).double())


@pytest.mark.parametrize("name", ["", "a\nb", "__metadata__", "x" * 513])
def test_names_are_printable_and_short(tmp_path, name):
    with pytest.raises(PayloadError, match="1 to 512 printable characters"):
        TensorWriter(tmp_path / "x", layout_of(name), {})
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_without_a_name_is_refused(tmp_path):
    with pytest.raises(PayloadError, match=r"tensor a: torch.complex64 has no place in a file"):
        TensorWriter(tmp_path / "x", {"a": (torch.complex64, (1,))}, {})


def test_a_header_above_the_limit_is_refused(tmp_path):
    with pytest.raises(PayloadError, match=f"is above the limit of {MAX_HEADER}"):
        TensorWriter(tmp_path / "x", {}, {"a": "x" * MAX_HEADER})


BAD = [
    (b"", "not a JSON table"),
    (b"[]", "not a JSON table"),
    (b"\xff\xfe", "not a JSON table"),
    (b"[" * 100_000, "not a JSON table"),
    (b'{"a":1,"a":1}', "a key is there twice"),
    ({"__metadata__": {"a": 1}}, "__metadata__ is not a table of texts"),
    ({"__metadata__": []}, "__metadata__ is not a table of texts"),
    ({"": entry()}, "1 to 512 printable characters"),
    ({"a": []}, "needs exactly dtype, shape and data_offsets"),
    ({"a": entry() | {"more": 1}}, "needs exactly dtype, shape and data_offsets"),
    ({"a": entry(dtype="F8")}, "has dtype 'F8'"),
    ({"a": entry(dtype=["F32"])}, "has dtype"),
    ({"a": entry(shape=(-1,))}, "has no valid shape"),
    ({"a": entry(shape=(True,))}, "has no valid shape"),
    ({"a": entry(shape=(1,) * 9)}, "has no valid shape"),
    ({"a": entry(shape=(2**60, 2**60))}, "has no valid shape"),
    ({"a": entry(offsets=(0, 4, 8))}, "has no valid data_offsets"),
    ({"a": entry(offsets=(0.0, 4.0))}, "has no valid data_offsets"),
    ({"a": entry(offsets=(4, 0))}, "needs 4 bytes and has -4"),
    ({"a": entry(offsets=(0, 8))}, "needs 4 bytes and has 8"),
    ({"a": entry(offsets=(4, 8))}, "starts at 4, not at 0: gap or overlap"),
    ({"a": entry(), "b": entry()}, "starts at 0, not at 4: gap or overlap"),
    ({"a": entry(), "b": entry(offsets=(4, 8))}, "describes 8 bytes of data and 4 are there"),
    ({}, "describes 0 bytes of data and 4 are there"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "text"), BAD)
def test_a_header_that_lies_is_refused(tmp_path, header, text):
    with pytest.raises(PayloadError, match=text):
        TensorReader(raw(tmp_path / "x", header, b"\0" * 4))


@pytest.mark.parametrize("data", [b"", b"\1", b"\xff" * 8, b"\xff" * 7 + b"\0" * 9])
def test_a_file_that_cannot_hold_its_header_is_refused(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(PayloadError, match="cannot hold a header of"):
        TensorReader(tmp_path / "x")


def test_every_cut_is_refused(tmp_path):
    write(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for cut in [*range(40), *range(len(data) - 40, len(data))]:
        (tmp_path / "cut").write_bytes(data[:cut])
        with pytest.raises(PayloadError):
            TensorReader(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(data + b"\0")
    with pytest.raises(PayloadError, match="bytes of data and"):
        TensorReader(tmp_path / "cut")


def test_a_missing_file_a_missing_tensor_and_a_shrinking_file(tmp_path):
    with pytest.raises(PayloadError, match="x is not there"):
        TensorReader(tmp_path / "x")
    written = write(tmp_path / "y")
    with TensorReader(tmp_path / "y") as reader:
        with pytest.raises(PayloadError, match="no tensor nobody"):
            reader.get("nobody")
        os.truncate(tmp_path / "y", written.size_bytes - 8)
        with pytest.raises(PayloadError, match="it shrank while being read"):
            reader.get("ids")


def test_the_state_hash_sees_names_shapes_order_and_every_bit(tmp_path):
    one = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([2.0])}
    write(tmp_path / "x", one)
    same = state_hash(tmp_path / "x")
    write(tmp_path / "y", one, metadata={"who": "others"})
    assert state_hash(tmp_path / "y") == same
    streamed = StateHash({"a": (2,), "b": (1,)})
    for name, tensor in one.items():
        streamed.add(name, tensor)
    assert streamed.hexdigest() == same
    for other in (
        {"b": one["b"], "a": one["a"]},
        {"a": one["a"], "c": one["b"]},
        {"a": torch.tensor([-0.0, 1.0]), "b": one["b"]},
        {"a": torch.tensor([0.0]), "b": torch.tensor([1.0, 2.0])},
        {"a": torch.tensor([[0.0, 1.0]]), "b": one["b"]},
    ):
        write(tmp_path / "z", other)
        assert state_hash(tmp_path / "z") != same


def test_a_state_is_fp32(tmp_path):
    write(tmp_path / "x", {"a": torch.tensor([1, 2])})
    with pytest.raises(PayloadError, match=r"tensor a is torch.int64; a state is fp32 throughout"):
        state_hash(tmp_path / "x")


FULL = """
import resource, signal, sys, torch
from pathlib import Path
from pww.transport.tensorfile import TensorWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with TensorWriter(Path(sys.argv[1]), {"a": (torch.float32, (50_000,))}, {}) as writer:
        writer.add("a", torch.zeros(50_000))
except OSError as fault:
    print(fault.errno)
"""


def test_a_full_disk_comes_through_and_leaves_the_old_file(tmp_path):
    write(tmp_path / "x", {"a": torch.ones(2)})
    before = (tmp_path / "x").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "x")],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert int(done.stdout) == errno.EFBIG
    assert (tmp_path / "x").read_bytes() == before
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_in_the_way_comes_through_and_leaves_no_part(tmp_path):
    (tmp_path / "x").mkdir()
    with (
        pytest.raises(IsADirectoryError),
        TensorWriter(tmp_path / "x", layout_of("a"), {}) as writer,
    ):
        writer.add("a", torch.zeros(2))
    assert os.listdir(tmp_path) == ["x"]
