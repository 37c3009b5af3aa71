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

from pww.transport.fingerprint import PIECE, Fingerprint
from pww.transport.payload import EXACT
from pww.transport.tensorfile import TensorWriter
from pww.wire import PayloadInfo

PAIRS = 4
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
            path = folder / "momentum.safetensors"
            self._momentum = TensorWriter(path, layout, {}, hashed=False)
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
        self._fingerprint = Fingerprint()  # of momentum

    def add(self, name: str, *, theta: torch.Tensor, momentum: torch.Tensor) -> None:
        """Appends one whole tensor and its momentum."""
        self._theta.add(name, theta)
        self._momentum.add(name, momentum)
        for piece in torch.split(momentum.reshape(-1), PIECE):
            self._fingerprint.add(piece)

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
            self._put_theta(name, theta, flush=False)
            self._put_momentum(name, momentum, flush=False)
            self._free.append(buffers)
            return
        self._unflushed += 4 * size
        flush = self._unflushed >= FLUSH_BYTES
        if flush:
            self._unflushed = 0
        jobs = [
            self._lanes[0].submit(self._put_theta, name, theta, flush=flush),
            self._lanes[1].submit(self._put_momentum, name, momentum, flush=flush),
        ]
        self._busy.append((jobs, buffers))

    def finish(self) -> tuple[PayloadInfo, str]:
        """Theta's file and the fingerprint of momentum's; both are whole and durable."""
        while self._busy:
            self._free.append(self._reclaim())
        self._stop()
        theta = self._theta.close()
        self._momentum.close()
        info = PayloadInfo(codec=EXACT, size_bytes=theta.size_bytes, sha256=theta.sha256)
        return info, self._fingerprint.hexdigest()

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

    def _put_theta(self, name: str, values: torch.Tensor, *, flush: bool) -> None:
        self._theta.extend(name, values)
        if flush:
            self._theta.flush()

    def _put_momentum(self, name: str, values: torch.Tensor, *, flush: bool) -> None:
        self._fingerprint.add(values)
        self._momentum.extend(name, values)
        if flush:
            self._momentum.flush()
