"""Tensor files: safetensors one tensor at a time, whole or absent, checked or refused.

Ours and not the library's writer, which wants every tensor in memory at once; any safetensors
reader can read the result. Reading goes by `pread` into fresh memory and not by mmap: the memory of
a merge is what it holds and not all it ever touched, and a file that shrinks under a reader is an
error instead of a SIGBUS.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from pww.errors import PayloadError
from pww.folder import sync_folder
from pww.transport.digest import new_digest
from pww.transport.header import MAX_HEADER, build, parse
from pww.transport.memory import aligned_buffer

CHUNK = 4 << 20
"""Bytes written, read or hashed together."""


@dataclass(frozen=True, slots=True)
class Written:
    """A complete file on disk."""

    size_bytes: int
    digest: str


class TensorWriter:
    """Writes `path` tensor by tensor in the order of `layout`; `close` makes it appear, durable.

    As a context manager it closes after a block that succeeded and leaves nothing behind otherwise.
    A full disk is the caller's to explain: its `OSError` comes through once the part is removed.
    """

    def __init__(
        self,
        path: Path,
        layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata: Mapping[str, str],
        *,
        hashed: bool = True,
        synced: bool = True,
    ) -> None:
        """`hashed=False` leaves the BLAKE3 out: `Written.digest` is "".

        `synced=False`: what outlives a power cut is the caller's to see to.
        """
        start, header = build(layout, metadata)
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._synced = synced
        self._entries = header.entries
        self._left = iter(header.entries)
        self._open_name, self._missing = "", 0  # the tensor that came in part, and its rest
        self._hash, self._size = new_digest() if hashed else None, 0
        self._file = os.open(
            self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
        )
        self._open = True
        self._write(memoryview(start))

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Appends the next tensor.

        Raises:
            PayloadError: it is not the next one, or its dtype or shape is not the announced one.
        """
        self._begin(name)
        entry = self._entries[name]
        if (tensor.dtype, tuple(tensor.shape)) != (entry.dtype, entry.shape):
            self.abort()
            raise PayloadError(
                f"tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, announced were "
                f"{entry.dtype} {entry.shape}"
            )
        self._missing = 0
        self._write(byte_view(tensor))

    def extend(self, name: str, values: torch.Tensor) -> None:
        """Appends the next values of a tensor that comes in pieces, in order.

        Raises:
            PayloadError: it is not that tensor's turn, or there are more than were announced.
        """
        if name != self._open_name:
            self._begin(name)
        data = byte_view(values)
        if values.dtype != self._entries[name].dtype or len(data) > self._missing:
            self.abort()
            raise PayloadError(
                f"tensor {name}: {len(data)} bytes of {values.dtype} come where {self._missing} of "
                f"{self._entries[name].dtype} are missing"
            )
        self._missing -= len(data)
        self._write(data)

    def flush(self) -> None:
        """What was written so far goes to the disk now, so that `close` has little to wait for."""
        os.fdatasync(self._file)

    def _begin(self, name: str) -> None:
        """The next tensor is `name`, and the one before is whole."""
        expected = self._open_name if self._missing else next(self._left, None)
        if name != expected or self._missing:
            self.abort()
            raise PayloadError(f"tensor {name} comes where {expected or 'the end'} was announced")
        self._open_name, self._missing = name, self._entries[name].size_bytes

    def close(self) -> Written:
        """Gives the file its name, durably if it is to be `synced`.

        Raises:
            PayloadError: a tensor that was announced is missing.
        """
        missing = self._open_name if self._missing else next(self._left, None)
        if missing is not None:
            self.abort()
            raise PayloadError(f"tensor {missing} was announced and never came")
        try:
            if self._synced:
                os.fsync(self._file)
            self._part.replace(self._path)
            if self._synced:
                sync_folder(self._path.parent)
        except OSError:
            self.abort()
            raise
        os.close(self._file)
        self._open = False
        return Written(self._size, "" if self._hash is None else self._hash.hexdigest())

    def abort(self) -> None:
        """Removes what was written; safe to call twice, and after `close` it does nothing."""
        if self._open:
            self._open = False
            os.close(self._file)
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> "TensorWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.close()

    def _write(self, data: memoryview) -> None:
        try:
            for start in range(0, len(data), CHUNK):
                rest = data[start : start + CHUNK]
                if self._hash is not None:
                    self._hash.update(rest)
                self._size += len(rest)
                while rest:
                    rest = rest[os.write(self._file, rest) :]
        except OSError:
            self.abort()
            raise


class TensorReader:
    """Reads one tensor at a time from a file whose structure was checked whole on opening.

    Raises:
        PayloadError: on opening, if anything about the structure is off; the text names the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise PayloadError(f"{path} is not there") from None
        try:
            size = os.fstat(self._file).st_size
            length = int.from_bytes(self._read(0, min(size, 8)), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise PayloadError(
                    f"{path}: {size} bytes cannot hold a header of {length} (limit {MAX_HEADER}): "
                    "not a tensor file, or cut off"
                )
            self._data = 8 + length
            try:
                header = parse(self._read(8, length), data_bytes=size - self._data)
            except PayloadError as fault:
                raise PayloadError(f"{path}: {fault}") from fault
        except BaseException:
            os.close(self._file)
            raise
        self.size_bytes = size
        self.metadata = header.metadata
        self._entries = header.entries
        self._open = True

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor, in file order."""
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._entries[name].shape

    def size(self, name: str) -> int:
        """How many values a tensor has."""
        return math.prod(self._entries[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """A tensor's dtype."""
        return self._entries[name].dtype

    def get(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own.

        Raises:
            PayloadError: there is none of that name, or the file shrank since it was opened.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise PayloadError(f"{self._path}: no tensor {name}")
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        self._fill(byte_view(tensor), self._data + entry.start)
        return tensor

    def read(self, name: str, out: torch.Tensor, *, start: int = 0) -> None:
        """Fills the flat `out` with the values of a tensor from its `start`-th on.

        Raises:
            PayloadError: it has another dtype, or the file shrank since it was opened.
        """
        entry = self._entries[name]
        if out.dtype != entry.dtype:
            raise PayloadError(
                f"{self._path}: tensor {name} is {entry.dtype}, expected was {out.dtype}"
            )
        self._fill(byte_view(out), self._data + entry.start + start * entry.dtype.itemsize)

    def digest(self) -> str:
        """BLAKE3 of the whole file, read again."""
        digest, buffer = new_digest(), aligned_buffer(min(CHUNK, self.size_bytes))
        for start in range(0, self.size_bytes, CHUNK):
            view = buffer[: self.size_bytes - start]
            self._fill(view, start)
            digest.update(view)
        return digest.hexdigest()

    def close(self) -> None:
        """Lets go of the file; safe to call twice."""
        if self._open:
            self._open = False
            os.close(self._file)

    def __enter__(self) -> "TensorReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.close()

    def _read(self, start: int, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data), start)
        return bytes(data)

    def _fill(self, view: memoryview, start: int) -> None:
        while view:
            got = os.preadv(self._file, [view[:CHUNK]], start)
            if got == 0:
                raise PayloadError(
                    f"{self._path} ended at byte {start}: it shrank while being read"
                )
            view, start = view[got:], start + got


class StateHash:
    """BLAKE3 over names, shapes and fp32 bytes in file order: equal states have equal hashes.

    It is the BLAKE3 of the plain tensor file of that state, header included and without metadata,
    so that whoever writes such a file hashes its bytes once.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        start, header = build({n: (torch.float32, shape) for n, shape in shapes.items()}, {})
        self._hash, self._left = new_digest(start), iter(header.entries)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes in the next tensor.

        Raises:
            PayloadError: it is not fp32.
        """
        if tensor.dtype != torch.float32:
            raise PayloadError(f"tensor {name} is {tensor.dtype}; a state is fp32 throughout")
        assert name == next(self._left, None), "tensors come in the order of their shapes"
        self._hash.update(byte_view(tensor))

    def hexdigest(self) -> str:
        """The hash, once every tensor was added."""
        assert next(self._left, None) is None, "a tensor is missing"
        return self._hash.hexdigest()


def state_hash(path: Path) -> str:
    """The `StateHash` of a file.

    Raises:
        PayloadError: the file is damaged or not fp32.
    """
    with TensorReader(path) as reader:
        state = StateHash({name: reader.shape(name) for name in reader.names})
        for name, tensor in tensors(reader):
            state.add(name, tensor)
    return state.hexdigest()


def tensors(reader: TensorReader) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of `reader`, one at a time, in file order."""
    for name in reader.names:
        yield name, reader.get(name)


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor; shares memory where it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data
