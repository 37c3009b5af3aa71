"""A generation being written: its files hashed and written beside the arithmetic.

BLAKE3 and the copy into the page cache take longer than the outer step, and both let go of the
interpreter. So each file has a thread of its own, which gets pieces in order while the caller
computes the next ones; a few recycled sets of buffers are all the memory in flight. A small model's
pieces are written in the caller's thread: starting threads would cost more.
"""

import math
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pww.codec import Codec
from pww.transport.fingerprint import PIECE, Fingerprint
from pww.transport.payload import EXACT, PayloadWriter
from pww.transport.tensorfile import TensorWriter
from pww.wire import PayloadInfo

SETS = 4
"""Sets of buffers in flight."""
FLUSH_BYTES = 64 << 20
"""A file's bytes go to the disk when that many are new, so that the end has little to wait for."""
SMALL_BYTES = 8 << 20
"""Files up to this size are written without threads."""
THETA, MOMENTUM, RESIDUAL = "theta.safetensors", "momentum.safetensors", "residual.safetensors"
UPDATE = "update.payload"
Buffers = tuple[torch.Tensor, ...]
Parts = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finished draft's files are known by; `residual` and `update` are of a down codec."""

    theta: PayloadInfo
    momentum: str  # fingerprints
    residual: str = ""
    update: PayloadInfo | None = None


class Draft:
    """A generation being written, in the order of its shapes: whole tensors, or pieces of them.

    With a `down` codec it has a residual as well, and the update that sites download.
    """

    def __init__(
        self, folder: Path, shapes: Mapping[str, tuple[int, ...]], *, down: Codec | None = None
    ) -> None:
        layout = {name: (torch.float32, shape) for name, shape in shapes.items()}
        names = (THETA, MOMENTUM) if down is None else (THETA, MOMENTUM, RESIDUAL)
        self._files: list[_File] = []
        self._update: PayloadWriter | None = None
        try:
            for name in names:
                self._files.append(_File(folder / name, layout, hashed=name == THETA))
            if down is not None:
                self._update = PayloadWriter(folder / UPDATE, shapes, down)
        except BaseException:
            self._abort_files()
            raise
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._piece = min(PIECE, max(sizes, default=0))
        self._lanes: tuple[ThreadPoolExecutor, ...] = ()
        if 4 * sum(sizes) > SMALL_BYTES:
            self._lanes = tuple(ThreadPoolExecutor(1, thread_name_prefix="merge") for _ in names)
        self._free: deque[Buffers] = deque()
        self._busy: deque[tuple[list[Future[None]], Buffers]] = deque()
        self._unflushed = 0

    def add(self, name: str, *, theta: torch.Tensor, momentum: torch.Tensor) -> None:
        """Appends one whole tensor and its momentum; for a draft without a down codec."""
        for file, tensor in zip(self._files, (theta, momentum), strict=True):
            file.add(name, tensor)

    def buffers(self) -> Buffers:
        """Memory for a piece of theta, of momentum and of a residual; they are `put`'s next.

        Raises:
            OSError: an earlier piece could not be written.
        """
        if self._free:
            return self._free.popleft()
        if not self._lanes or len(self._busy) < SETS:
            return tuple(torch.empty(self._piece) for _ in self._files)
        return self._reclaim()

    def put(self, name: str, buffers: Buffers, size: int, *, update: Parts | None = None) -> None:
        """Appends the first `size` values of `buffers`, which are taken back, and their update.

        Raises:
            OSError: it could not be written.
        """
        self._unflushed += 4 * size
        flush = bool(self._lanes) and self._unflushed >= FLUSH_BYTES
        if flush:
            self._unflushed = 0
        jobs = [
            partial(file.extend, name, buffer[:size], flush=flush)
            for file, buffer in zip(self._files, buffers, strict=True)
        ]
        if self._update is not None:
            assert update is not None, "a down codec has an update for every piece"
            jobs[-1] = partial(
                _both, jobs[-1], partial(self._update.extend, name, update, num_values=size)
            )
        if self._lanes:
            tasks = [lane.submit(job) for lane, job in zip(self._lanes, jobs, strict=True)]
            self._busy.append((tasks, buffers))
            return
        for job in jobs:
            job()
        self._free.append(buffers)

    def finish(self) -> Finished:
        """What the files are; they are whole and durable."""
        while self._busy:
            self._free.append(self._reclaim())
        self._stop()
        theta, *others = (file.close() for file in self._files)
        info = PayloadInfo(codec=EXACT, size_bytes=theta.size_bytes, digest=theta.known_by)
        if self._update is None:
            return Finished(info, others[0].known_by)
        return Finished(info, others[0].known_by, others[1].known_by, self._update.close())

    def abort(self) -> None:
        """Gives up; safe to call twice."""
        self._stop()
        self._abort_files()

    def _abort_files(self) -> None:
        for file in self._files:
            file.abort()
        if self._update is not None:
            self._update.abort()

    def _reclaim(self) -> Buffers:
        jobs, buffers = self._busy.popleft()
        for job in jobs:
            job.result()
        return buffers

    def _stop(self) -> None:
        for lane in self._lanes:
            lane.shutdown(wait=True, cancel_futures=True)
        self._busy.clear()


@dataclass(frozen=True, slots=True)
class _Closed:
    size_bytes: int
    known_by: str  # BLAKE3 or fingerprint


class _File:
    """One tensor file of a draft, and what it will be known by."""

    def __init__(
        self, path: Path, layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], *, hashed: bool
    ) -> None:
        self._writer = TensorWriter(path, layout, {}, hashed=hashed)
        self._fingerprint = None if hashed else Fingerprint()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._writer.add(name, tensor)
        if self._fingerprint is not None:
            self._fingerprint.add_all(tensor)

    def extend(self, name: str, values: torch.Tensor, *, flush: bool) -> None:
        if self._fingerprint is not None:
            self._fingerprint.add(values)
        self._writer.extend(name, values)
        if flush:
            self._writer.flush()

    def close(self) -> _Closed:
        written = self._writer.close()
        print_ = self._fingerprint
        return _Closed(written.size_bytes, written.digest if print_ is None else print_.hexdigest())

    def abort(self) -> None:
        self._writer.abort()


def _both(first: partial[None], second: partial[None]) -> None:
    first()
    second()
