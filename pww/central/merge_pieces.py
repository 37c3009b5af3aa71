"""The merge's arithmetic: threads that each take the next piece, from reading to writing it.

A piece is read, decoded, weighed, added, stepped and appended by one thread, in buffers that stay
in its core's cache; the threads share nothing but the order. What depends on the order (hashes,
fingerprints, the norm's sum, which fault is told) is done in it: no bit depends on the threads.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from pww.central.downcast import Downcast
from pww.central.draft import Draft, Over
from pww.central.generations import Generation
from pww.central.screening import Opened, one_thread, square_sum
from pww.central.turns import Turns
from pww.codec import Codec, is_finite
from pww.errors import NotFiniteError, PayloadError
from pww.outer import OuterOptimizer
from pww.transport.fingerprint import PIECE, Fingerprint, mark
from pww.transport.tensorfile import TensorReader


class Unmergeable(PayloadError):
    """The merge cannot go on with `delta`."""

    delta: str


class Changed(Unmergeable):
    """The payload of `delta` is not, or not any more, what was inspected on receipt."""

    def __init__(self, delta: str) -> None:
        self.delta = delta
        super().__init__(
            "its payload changed on the central's disk after it was received and found right: "
            "look for a failing disk"
        )

    def __reduce__(self) -> tuple[type["Changed"], tuple[str]]:
        """Keeps the delta when the error travels from rank to rank."""
        return type(self), (self.delta,)


class NotFiniteStep(Exception):
    """The step left a value of `tensor` that is not finite."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        super().__init__(tensor)


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with a piece: the deltas' weights, and the outer step under their mean."""

    optimizer: OuterOptimizer
    partial: bool
    share: Sequence[float]


def merge_pieces(
    base: Generation, usable: Sequence[Opened], *, step: Step, out: Draft, down: Codec | None
) -> float:
    """Writes the step from `base` under the weighted mean of `usable`; the mean's squared L2 norm.

    Raises:
        NotFiniteStep: theta or momentum would not be finite; the first tensor in file order.
        Changed: a payload is not what was inspected.
        OSError: it could not be written.
    """
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        work = _Work(base, usable, step, out, down, stack)
        pool = stack.enter_context(
            ThreadPoolExecutor(
                out.workers, thread_name_prefix="merge", initializer=torch.set_num_threads,
                initargs=(1,),
            )
        )  # fmt: skip
        others = [pool.submit(work.run) for _ in range(out.workers - 1)]
        work.run()
        for one in others:
            one.result()
        return work.outcome()


class _Work:
    """One merge, done by any number of threads that `run` it."""

    def __init__(
        self, base: Generation, usable: Sequence[Opened], step: Step, out: Draft,
        down: Codec | None, stack: ExitStack,
    ) -> None:  # fmt: skip
        self.thetas = stack.enter_context(TensorReader(base.theta))
        self.momenta = stack.enter_context(TensorReader(base.momentum))
        past = base.residual if down is not None else None
        self.residuals = None if past is None else stack.enter_context(TensorReader(past))
        self.usable, self.step, self.out, self.down = usable, step, out, down
        self._pieces = enumerate(_pieces(self.thetas))
        self._lock = threading.Lock()
        self._faults: list[tuple[int, BaseException]] = []
        self._seen = [Fingerprint() for _ in usable]
        self._turns, self._total = Turns(), 0.0

    def run(self) -> None:
        """Takes pieces until there are none, or somebody failed; keeps what it raises."""
        number, worker = -1, _Worker(self)
        try:
            while True:
                buffers = self.out.buffers()  # before the piece, see there
                with self._lock:
                    number, piece = next(self._pieces, (-1, None))
                if piece is None:
                    self.out.give_back(buffers)
                    return
                worker.merge(number, *piece, buffers)
        except Over:
            return
        except BaseException as fault:
            with self._lock:
                self._faults.append((number, fault))
            self.out.stop()

    def note(self, number: int, marks: Sequence[bytes], square: float) -> None:
        """What was seen of the deltas' piece; in order, whoever comes first."""
        self._turns.bring(number, partial(self._note, marks, square))

    def _note(self, marks: Sequence[bytes], square: float) -> None:
        self._total += square
        for seen, marked in zip(self._seen, marks, strict=True):
            seen.add_mark(marked)

    def outcome(self) -> float:
        """The mean's squared norm, once all have run. Raises as `merge_pieces`.

        Of several faults it is the first piece's: pieces are begun in order, so that it does not
        depend on who was faster.
        """
        if self._faults:
            raise min(self._faults, key=lambda one: one[0])[1]
        for one, seen in zip(self.usable, self._seen, strict=True):
            if seen.hexdigest() != one.checked.fingerprint:
                raise Changed(one.staged.delta)
        return self._total


class _Worker:
    """One thread's memory, and what it does with a piece."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._deltas = [one.reader.buffers(PIECE) for one in work.usable]
        self._downcast = None
        if work.down is not None:
            self._downcast = Downcast(work.down, work.residuals, piece=PIECE)

    def merge(
        self, number: int, name: str, start: int, size: int, buffers: Sequence[torch.Tensor]
    ) -> None:
        work, step = self._work, self._work.step
        mean = self._mean(number, name, start, size)
        theta, momentum, *residual = (buffer[:size] for buffer in buffers)
        work.thetas.read(name, theta, start=start)
        work.momenta.read(name, momentum, start=start)
        if self._downcast is not None:
            self._downcast.remember(theta)
        step.optimizer.step(theta, momentum, mean, partial=step.partial)
        if not is_finite(theta):  # as it is if the new momentum is not: see `outer_step_`
            raise NotFiniteStep(name)
        update = None
        if self._downcast is not None:
            try:
                update = self._downcast.update(name, theta, residual[0], start=start)
            except NotFiniteError:
                raise NotFiniteStep(name) from None
        work.out.put(number, name, tuple(buffers), size, update=update)

    def _mean(self, number: int, name: str, start: int, size: int) -> torch.Tensor:
        """The deltas' weighted mean, in the memory of the first: one plain kernel a line."""
        mean = torch.empty(0)
        marks = []
        sources = zip(self._work.usable, self._deltas, self._work.step.share, strict=True)
        for at, (one, memory, weight) in enumerate(sources):
            try:
                parts = one.reader.fill(memory, name, start=start, size=size)
                marks.append(b"".join(mark(part) for part in parts.values()))
                values = one.reader.decode(parts, (size,))
            except PayloadError:
                raise Changed(one.staged.delta) from None
            values.mul_(weight)
            if at == 0:
                mean = values
            else:
                mean.add_(values)
        self._work.note(number, marks, square_sum(mean))
        return mean


def _pieces(reader: TensorReader) -> Iterator[tuple[str, int, int]]:
    """Name, start and size of every piece, in file order; an empty tensor is one empty piece."""
    for name in reader.names:
        total = reader.size(name)
        for start in range(0, max(total, 1), PIECE):
            yield name, start, min(PIECE, total - start)
