"""Shards: windows as rows of fixed width in memory-mapped `.npy` files, written once.

`.npy` is self-describing (dtype and shape in its header), so a shard that does not belong to its
manifest is refused before its first row is used. Little-endian everywhere; 64-bit offsets.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
import numpy.typing as npt

from pww.data.manifest import Shard
from pww.errors import DataError

SHARD_BYTES = 1 << 30
BUFFER_TOKENS = 1 << 20

Dtype = Literal["uint16", "uint32"]
Ids = Sequence[int] | npt.NDArray[np.integer]
Windows = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer]


def dtype_for(vocab_size: int) -> Dtype:
    """The narrowest type for ids below `vocab_size`: 65,535 is the largest id of 16 bits."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class ShardWriter:
    """Cuts one stream of token ids into windows, written to `<stem>-NNNNN.npy` below `folder`."""

    def __init__(
        self,
        folder: Path,
        *,
        stem: str,
        window_tokens: int,
        dtype: Dtype,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._width = window_tokens
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._capacity = max(1, shard_bytes // (window_tokens * self._dtype.itemsize))
        self._pending: list[Tokens] = []
        self._num_pending = 0
        self._done: list[Shard] = []
        self._file: io.BufferedRandom | None = None
        self._rows = 0
        self.num_tokens = 0

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, tokens: Tokens) -> None:
        """Appends to the stream."""
        self._pending.append(tokens)
        self._num_pending += tokens.size
        self.num_tokens += tokens.size
        if self._num_pending >= BUFFER_TOKENS:
            self._flush()

    def finish(self) -> tuple[Shard, ...]:
        """Every shard, complete; the tail, `num_tokens % window_tokens`, is not in them."""
        self._flush()
        self._end_shard()
        return tuple(self._done)

    def _flush(self) -> None:
        stream = np.concatenate([np.empty(0, self._dtype), *self._pending], casting="unsafe")
        num_whole = stream.size // self._width * self._width
        self._pending = [stream[num_whole:].copy()]
        self._num_pending = stream.size - num_whole
        rows = stream[:num_whole].reshape(-1, self._width).astype(self._dtype, copy=False)
        while len(rows):
            if self._file is None:
                self._file = self._path().open("w+b")
                self._write_header(self._file)
            taken = rows[: self._capacity - self._rows]
            self._file.write(taken.tobytes())
            self._rows += len(taken)
            rows = rows[len(taken) :]
            if self._rows == self._capacity:
                self._end_shard()

    def _end_shard(self) -> None:
        if self._file is None:
            return
        size = self._file.tell()
        self._file.seek(0)
        self._write_header(self._file)  # numpy pads the header so that its length stays
        self._file.flush()
        self._file.seek(0)
        digest = hashlib.file_digest(self._file, "sha256").hexdigest()
        self._file.close()
        name = self._path().name
        self._done.append(Shard(name=name, windows=self._rows, size_bytes=size, sha256=digest))
        self._file = None
        self._rows = 0

    def _path(self) -> Path:
        return self._folder / f"{self._stem}-{len(self._done):05d}.npy"

    def _write_header(self, file: io.BufferedRandom) -> None:
        np.lib.format.write_array_header_1_0(
            file,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._rows, self._width),
            },
        )


class Shards:
    """Random access to the windows of some shards, ids from 0 in the order of `shards`."""

    def __init__(
        self, folder: Path, shards: Sequence[Shard], *, window_tokens: int, dtype: Dtype, what: str
    ) -> None:
        """Opens every shard; sizes and headers are compared with what the manifest says.

        Raises:
            DataError: a shard is missing or is not what the manifest says.
        """
        self._what = what
        self._width = window_tokens
        self._maps = [_open(folder, shard, window_tokens, dtype) for shard in shards]
        self._paths = [folder / shard.name for shard in shards]
        self._ends = np.cumsum([0, *(shard.windows for shard in shards)])[1:]
        self._num = sum(shard.windows for shard in shards)

    def __len__(self) -> int:
        return self._num

    def read(self, ids: Ids) -> Windows:
        """The windows `ids` (any order, repeats allowed) as int64 `[len(ids), window_tokens]`.

        Raises:
            DataError: an id is not in `[0, len(self))`.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        # As unsigned numbers negative ids are huge: one comparison for both ends.
        if wanted.size and int(wanted.view(np.uint64).max()) >= len(self):
            bad = next(int(i) for i in wanted if not 0 <= i < len(self))
            raise DataError(
                f"{self._what} window {bad} does not exist: this corpus has {len(self):,}, counted"
                " from 0; the ids come from another corpus"
            )
        if len(self._maps) == 1:
            return self._maps[0][wanted].astype(np.int64)
        windows = np.empty((wanted.size, self._width), np.int64)
        owners = np.searchsorted(self._ends, wanted, side="right")
        for owner in np.unique(owners):
            here = owners == owner
            first = int(self._ends[owner - 1]) if owner else 0
            windows[here] = self._maps[owner][wanted[here] - first]
        return windows

    def expect(self, ids: Ids) -> None:
        """Asks the kernel to read the windows `ids` into its page cache, and does not wait for it.

        A hint: ids that do not exist are left out, and so is all of it where it cannot be given.
        """
        wanted = np.unique(np.asarray(ids, dtype=np.int64))
        wanted = wanted[(wanted >= 0) & (wanted < len(self))]
        owners = np.searchsorted(self._ends, wanted, side="right")
        for owner in np.unique(owners):
            first = int(self._ends[owner - 1]) if owner else 0
            _read_ahead(self._paths[owner], self._maps[owner], wanted[owners == owner] - first)


def _read_ahead(path: Path, rows: Tokens, wanted: npt.NDArray[np.int64]) -> None:
    """`wanted` are rows of a shard, ascending; neighbours go in one call."""
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    ends = np.flatnonzero(np.diff(wanted, append=wanted[-1] + 2) != 1)
    starts = np.concatenate(([0], ends[:-1] + 1))
    size = rows[:1].nbytes
    with suppress(OSError), path.open("rb", buffering=0) as file:
        header = os.fstat(file.fileno()).st_size - rows.nbytes
        for start, end in zip(wanted[starts].tolist(), wanted[ends].tolist(), strict=True):
            at, length = header + start * size, (end + 1 - start) * size
            os.posix_fadvise(file.fileno(), at, length, os.POSIX_FADV_WILLNEED)


def _open(folder: Path, shard: Shard, window_tokens: int, dtype: Dtype) -> Tokens:
    """One shard, mapped read-only, after its size and header were compared with the manifest."""
    path = folder / shard.name
    remedy = f"delete {folder} and start again"
    try:
        size = path.stat().st_size
        if size != shard.size_bytes:
            raise DataError(
                f"{path} has {size:,} bytes, its manifest says {shard.size_bytes:,}; {remedy}"
            )
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as fault:
        raise DataError(f"cannot read shard {path}: {fault.strerror}; {remedy}") from None
    except ValueError as fault:
        raise DataError(f"{path} is not a shard ({fault}); {remedy}") from None
    found = f"{array.dtype.name} {array.shape}"
    stated = f"{dtype} {(shard.windows, window_tokens)}"
    if found != stated:
        raise DataError(f"{path} holds {found}, its manifest says {stated}; {remedy}")
    plain: Tokens = np.asarray(array)  # memmap's own indexing costs more than the rows
    return plain
