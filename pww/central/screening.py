"""Which deltas may be merged: each is looked at once, whole, and known again by its fingerprint.

`inspect` reads every byte of a payload: digest, shapes, finite values, norms. What it found stays
valid for as long as the payload's bytes are the same, of which a merge makes sure by their
fingerprint. `screen` leaves out what cannot be merged, by name, and what
was encoded on such.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pww.codec import require_finite
from pww.errors import PayloadError
from pww.transport.fingerprint import Fingerprint
from pww.transport.payload import PayloadReader
from pww.wire import PayloadInfo

BLOCK = 1 << 14
"""Values squared together in fp32."""
SMALLEST = 1e-25
"""A sum of squares above it has lost nothing that counts to fp32's underflow."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StagedPayload:
    """A delta that waits to be merged, with its durable payload."""

    delta: str
    prev: str
    replica: str
    path: Path
    info: PayloadInfo
    tokens: int
    staleness: int
    partial: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """What `inspect` found: the payload is whole, fits and is finite. Squares are sums, in fp64."""

    fingerprint: str
    squares: Mapping[str, float]  # of each tensor

    @property
    def norm(self) -> float:
        """L2 over all tensors."""
        return math.sqrt(math.fsum(self.squares.values()))


@dataclass(frozen=True, slots=True)
class Excluded:
    """A delta that is left out, and why."""

    delta: str
    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A delta that may be merged, its payload open."""

    staged: StagedPayload
    reader: PayloadReader
    checked: Checked


@dataclass(frozen=True, slots=True)
class Screened:
    """The deltas that may be merged and those that may not. Close it after the merge."""

    usable: tuple[Opened, ...]
    excluded: tuple[Excluded, ...]
    _stack: ExitStack = field(repr=False)

    def without(self, delta: str, reason: str) -> "Screened":
        """Leaves one of `usable` out as well, and what was encoded on it."""
        staged = next(one.staged for one in self.usable if one.staged.delta == delta)
        left_out = [*self.excluded, Excluded(delta, staged.replica, reason)]
        return _sorted_out(self.usable, left_out, self._stack)

    def __enter__(self) -> "Screened":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Pieces:
    """Reads a payload once, from the first tensor to the last, and takes its fingerprint."""

    def __init__(self, reader: PayloadReader) -> None:
        self.reader = reader
        self._fingerprint = Fingerprint()

    def of(self, name: str) -> Iterator[torch.Tensor]:
        """As `PayloadReader.pieces`."""
        return self.reader.pieces(name, seen=self._fingerprint.add)

    def fingerprint(self) -> str:
        """Of everything that was read."""
        return self._fingerprint.hexdigest()


def inspect(path: Path, info: PayloadInfo, shapes: Shapes, *, hashed: bool = True) -> Checked:
    """Lets a payload pass that fits a model of `shapes` and is finite throughout.

    Raises:
        PayloadError: it is not; the text names the tensor.
    """
    with one_thread(), PayloadReader(path, info, hashed=hashed) as reader:
        _compare(reader.shapes, shapes)
        source, squares = Pieces(reader), {}
        for name in shapes:
            squares[name] = sum(square_sum(piece) for piece in source.of(name))
            if not math.isfinite(squares[name]):  # fp32 squares never overflow fp64
                _explain(name, reader)
        return Checked(source.fingerprint(), squares)


def screen(
    deltas: Sequence[StagedPayload], shapes: Shapes, *, known: Mapping[str, Checked]
) -> Screened:
    """Sorts out what cannot be merged: damaged, not finite, another model's, encoded on such.

    `known` are the deltas that were inspected before, by id; the others are now.
    """
    stack = ExitStack()
    usable: list[Opened] = []
    excluded: list[Excluded] = []
    for staged in sorted(deltas, key=lambda d: (d.replica, d.delta)):
        try:
            checked = known.get(staged.delta) or inspect(staged.path, staged.info, shapes)
            reader = stack.enter_context(PayloadReader(staged.path, staged.info, hashed=False))
        except PayloadError as fault:
            excluded.append(Excluded(staged.delta, staged.replica, str(fault)))
        else:
            usable.append(Opened(staged, reader, checked))
    return _sorted_out(usable, excluded, stack)


def square_sum(tensor: torch.Tensor) -> float:
    """Sum of squares, to a few 1e-6 of itself; nan or inf if a value is, and only then.

    fp32 kernels on blocks that fit the cache, their sums in fp64: six times as fast as widening
    every value. A block whose squares leave fp32's range, on either side, is widened.
    """
    total = 0.0
    for block in torch.split(tensor.reshape(-1), BLOCK):
        square = float(torch.dot(block, block))
        if not SMALLEST < square < math.inf:
            wide = block.double()
            square = float(torch.dot(wide, wide))
        total += square
    return total


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's kernels stay in this thread: the pieces are small and other threads work beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sorted_out(
    opened: Iterable[Opened], left_out: Iterable[Excluded], stack: ExitStack
) -> Screened:
    """Leaves out, too, what was encoded on what is left out: its residual was never adopted."""
    excluded = {one.delta: one for one in left_out}
    usable = {one.staged.delta: one for one in opened if one.staged.delta not in excluded}
    while orphans := [d for d, one in usable.items() if one.staged.prev in excluded]:
        for delta in orphans:
            staged = usable.pop(delta).staged
            reason = f"it was encoded on delta {staged.prev}, which was left out"
            excluded[delta] = Excluded(delta, staged.replica, reason)
    return Screened(tuple(usable.values()), tuple(excluded.values()), stack)


def _explain(name: str, reader: PayloadReader) -> None:
    try:
        require_finite(reader.tensor(name))
    except PayloadError as fault:
        raise PayloadError(f"tensor {name}: {fault}") from fault
    raise PayloadError(f"tensor {name}: its squares are not finite; it was changed while read")


def _compare(theirs: Shapes, ours: Shapes) -> None:
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise PayloadError(
                f"tensor {name} has shape {theirs.get(name, 'none')} in the delta and "
                f"{ours.get(name, 'none')} here: it was trained from another model"
            )
