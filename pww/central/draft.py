"""A generation being written by several threads, each file in order, hashed on the way.

Whoever computed a piece appends it: what was just made is in that core's cache, and no thread is
for one file alone, so that all cores have the same to do. A piece that is early waits in one of a
few recycled sets of buffers, which are all the memory in flight (`Turns`). A thread a file lets the
disk begin early. A small model's pieces are written in the caller's thread: starting threads
would cost more.
"""

import math
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pww.central.turns import Turns
from pww.codec import Codec
from pww.transport.fingerprint import PIECE, Fingerprint, mark
from pww.transport.payload import EXACT, PayloadWriter
from pww.transport.tensorfile import TensorWriter
from pww.wire import PayloadInfo

MAX_WORKERS = 4
"""Threads that compute; more would wait for the interpreter."""
SPARE = 2
"""Sets of buffers beside those that are being filled."""
FLUSH_BYTES = 64 << 20
"""A file's bytes go to the disk when that many are new, so that the end has little to wait for."""
SMALL_BYTES = 8 << 20
"""Files up to this size are written without threads."""
THETA, MOMENTUM, RESIDUAL = "theta.safetensors", "momentum.safetensors", "residual.safetensors"
UPDATE = "update.payload"
Buffers = tuple[torch.Tensor, ...]
Parts = Mapping[str, torch.Tensor]


class Over(Exception):
    """Another thread gave the draft up, and tells why."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finished draft's files are known by; `residual` and `update` are of a down codec."""

    theta: PayloadInfo
    momentum: str  # fingerprints
    residual: str = ""
    update: PayloadInfo | None = None


class Draft:
    """A generation being written, in the order of its shapes: whole tensors, or pieces of them.

    With a `down` codec it has a residual as well, and the update that sites download. `buffers`,
    `put` and `stop` may be called by `workers` threads at once.
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
        large = 4 * sum(sizes) > SMALL_BYTES
        self.workers = min(MAX_WORKERS, len(os.sched_getaffinity(0))) if large else 1
        self._flusher = (
            ThreadPoolExecutor(len(names), thread_name_prefix="flush") if large else None
        )
        self._flushes: list[Future[None]] = []
        self._unflushed = 0
        self._turns = [Turns() for _ in names]
        self._changed = threading.Condition()
        self._free: list[Buffers] = []
        self._num_sets, self._over = 0, False

    def add(self, name: str, *, theta: torch.Tensor, momentum: torch.Tensor) -> None:
        """Appends one whole tensor and its momentum; for a draft without a down codec."""
        for file, tensor in zip(self._files, (theta, momentum), strict=True):
            file.add(name, tensor)

    def buffers(self) -> Buffers:
        """Memory for a piece of theta, of momentum and of a residual, once there is some.

        They are for the `put` of the next piece that nobody has begun: begin one only afterwards,
        or all that there are may wait for it.

        Raises:
            Over: nothing will be written any more.
        """
        with self._changed:
            while not self._free and self._num_sets == self.workers + SPARE and not self._over:
                self._changed.wait()
            if self._over:
                raise Over
            if self._free:
                return self._free.pop()
            self._num_sets += 1
        return tuple(torch.empty(self._piece) for _ in self._files)

    def put(
        self, number: int, name: str, buffers: Buffers, size: int, *, update: Parts | None = None
    ) -> None:
        """Appends the first `size` values of `buffers`, which are taken back, and their update.

        Pieces may come in any order; `number` counts them from 0 in the order of the file.

        Raises:
            OSError: this piece, or an earlier one that was left to this thread, was not written.
        """
        marks = [file.mark(buffer[:size]) for file, buffer in self._pairs(buffers)]
        used = _Count(len(self._files))

        def append(at: int) -> None:
            self._files[at].extend(name, buffers[at][:size], marks[at])
            if at == 0:
                self._flush_now_and_then(4 * size)
            if at == len(self._files) - 1 and self._update is not None:
                assert update is not None, "a down codec has an update for every piece"
                self._update.extend(name, update, num_values=size)
            if used.down():
                with self._changed:
                    self._free.append(buffers)
                    self._changed.notify()

        for at, turns in enumerate(self._turns):
            turns.bring(number, partial(append, at))

    def give_back(self, buffers: Buffers) -> None:
        """For who took them and has nothing to put."""
        with self._changed:
            self._free.append(buffers)
            self._changed.notify()

    def stop(self) -> None:
        """Whoever waits for buffers stops doing so: a piece will never come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def finish(self) -> Finished:
        """What the files are; they are whole and durable.

        Raises:
            OSError: they could not be written.
        """
        self._end_flushes()
        theta, *others = (file.close() for file in self._files)
        info = PayloadInfo(codec=EXACT, size_bytes=theta.size_bytes, digest=theta.known_by)
        if self._update is None:
            return Finished(info, others[0].known_by)
        return Finished(info, others[0].known_by, others[1].known_by, self._update.close())

    def abort(self) -> None:
        """Gives up; safe to call twice."""
        if self._flusher is not None:
            self._flusher.shutdown(cancel_futures=True)
        self._abort_files()

    def _pairs(self, buffers: Buffers) -> "zip[tuple[_File, torch.Tensor]]":
        return zip(self._files, buffers, strict=True)

    def _abort_files(self) -> None:
        for file in self._files:
            file.abort()
        if self._update is not None:
            self._update.abort()

    def _flush_now_and_then(self, num_bytes: int) -> None:
        """In the turn of the first file."""
        self._unflushed += num_bytes
        if self._flusher is None or self._unflushed < FLUSH_BYTES:
            return
        if any(not one.done() for one in self._flushes):
            return  # the disk is at it
        self._unflushed = 0
        self._flushes = [one for one in self._flushes if one.done() and one.exception() is not None]
        self._flushes += [self._flusher.submit(file.flush) for file in self._files]

    def _end_flushes(self) -> None:
        """What the disk could not take is told once: to the flush."""
        if self._flusher is not None:
            self._flusher.shutdown()
            for one in self._flushes:
                one.result()


class _Count:
    """Counts down; the file that is the last to be done with a set of buffers frees it."""

    def __init__(self, left: int) -> None:
        self._lock, self._left = threading.Lock(), left

    def down(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left == 0


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
        self.flush = self._writer.flush

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._writer.add(name, tensor)
        if self._fingerprint is not None:
            self._fingerprint.add_all(tensor)

    def mark(self, values: torch.Tensor) -> bytes:
        return b"" if self._fingerprint is None else mark(values)

    def extend(self, name: str, values: torch.Tensor, marked: bytes) -> None:
        if self._fingerprint is not None:
            self._fingerprint.add_mark(marked)
        self._writer.extend(name, values)

    def close(self) -> _Closed:
        written = self._writer.close()
        print_ = self._fingerprint
        return _Closed(written.size_bytes, written.digest if print_ is None else print_.hexdigest())

    def abort(self) -> None:
        self._writer.abort()
