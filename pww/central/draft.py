"""A generation being written: theta and momentum hashed and written beside the arithmetic.

SHA-256 and the copy into the page cache take longer than the outer step, and both let go of the
interpreter. So each file has a thread of its own, which gets pieces in order while the caller
computes the next ones; a few recycled pairs of buffers are all the memory in flight. A small
model's pieces are written in the caller's thread: starting threads would cost more.
"""

import math
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from pww.transport.payload import EXACT
from pww.transport.tensorfile import TensorWriter, Written
from pww.wire import PayloadInfo

PIECE = 1 << 18
"""Values worked on together, 1 MiB of fp32: what a merge touches stays in the cache."""
PAIRS = 6
"""Pairs of buffers in flight."""
FLUSH_BYTES = 64 << 20
"""A file's bytes go to the disk when that many are new, so that the end has little to wait for."""
SMALL_BYTES = 8 << 20
"""Files up to this size are written without threads."""


class Draft:
    """A generation being written, in the order of its shapes: whole tensors, or pieces of them."""

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        layout = {name: (torch.float32, shape) for name, shape in shapes.items()}
        self._theta = TensorWriter(folder / "theta.safetensors", layout, {})
        try:
            self._momentum = TensorWriter(folder / "momentum.safetensors", layout, {})
        except BaseException:
            self._theta.abort()
            raise
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._piece = min(PIECE, max(sizes, default=0))
        self._lanes: tuple[ThreadPoolExecutor, ...] = ()
        if 4 * sum(sizes) > SMALL_BYTES:
            self._lanes = tuple(ThreadPoolExecutor(1, thread_name_prefix="merge") for _ in "tm")
        self._free: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self._busy: deque[tuple[list[Future[None]], tuple[torch.Tensor, torch.Tensor]]] = deque()
        self._unflushed = 0

    def add(self, name: str, *, theta: torch.Tensor, momentum: torch.Tensor) -> None:
        """Appends one whole tensor and its momentum."""
        self._theta.add(name, theta)
        self._momentum.add(name, momentum)

    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for a piece of theta and of momentum; they are `put`'s next.

        Raises:
            OSError: an earlier piece could not be written.
        """
        if self._free:
            return self._free.popleft()
        if not self._lanes or len(self._busy) < PAIRS:
            return torch.empty(self._piece), torch.empty(self._piece)
        return self._reclaim()

    def put(self, name: str, buffers: tuple[torch.Tensor, torch.Tensor], size: int) -> None:
        """Appends the first `size` values of `buffers`, which are taken back.

        Raises:
            OSError: it could not be written.
        """
        theta, momentum = (buffer[:size] for buffer in buffers)
        if not self._lanes:
            self._theta.extend(name, theta)
            self._momentum.extend(name, momentum)
            self._free.append(buffers)
            return
        self._unflushed += 4 * size
        flush = self._unflushed >= FLUSH_BYTES
        if flush:
            self._unflushed = 0
        pairs = zip(self._lanes, (self._theta, self._momentum), (theta, momentum), strict=True)
        jobs = [lane.submit(_write, file, name, values, flush) for lane, file, values in pairs]
        self._busy.append((jobs, buffers))

    def finish(self) -> tuple[PayloadInfo, PayloadInfo]:
        """Theta's and momentum's file; both are whole and durable."""
        while self._busy:
            self._free.append(self._reclaim())
        self._stop()
        return _info(self._theta.close()), _info(self._momentum.close())

    def abort(self) -> None:
        """Gives up; safe to call twice."""
        self._stop()
        self._theta.abort()
        self._momentum.abort()

    def _reclaim(self) -> tuple[torch.Tensor, torch.Tensor]:
        jobs, buffers = self._busy.popleft()
        for job in jobs:
            job.result()
        return buffers

    def _stop(self) -> None:
        for lane in self._lanes:
            lane.shutdown(wait=True, cancel_futures=True)
        self._busy.clear()


def _write(file: TensorWriter, name: str, values: torch.Tensor, flush: bool) -> None:
    file.extend(name, values)
    if flush:
        file.flush()


def _info(written: Written) -> PayloadInfo:
    return PayloadInfo(codec=EXACT, size_bytes=written.size_bytes, sha256=written.sha256)
