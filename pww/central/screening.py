"""Which deltas may be merged: each is looked at once, whole, and known again by its fingerprint.

`inspect` reads every byte of a payload: digest, shapes, finite values, norms. What it found stays
valid for as long as the payload's bytes are the same; a merge makes sure of that by `Fingerprint`,
which costs a thirtieth of a SHA-256. `screen` leaves out what cannot be merged, by name, and what
was encoded on such.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pww.central.draft import PIECE
from pww.codec import require_finite
from pww.errors import PayloadError
from pww.transport.payload import PayloadReader
from pww.wire import PayloadInfo

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


class Fingerprint:
    """Knows bytes again: the sums of their 64-bit words, piece by piece, in order.

    It finds damage, not malice: the payload is the central's own copy of bytes whose SHA-256 was
    right. One flipped bit always shows.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, parts: Mapping[str, torch.Tensor]) -> None:
        """Takes in the parts of the next piece."""
        for part in parts.values():
            flat = part.reshape(-1).view(torch.uint8)
            whole = flat.numel() // 8 * 8
            words = flat[:whole].view(torch.int64).sum()
            self._hash.update(int(words).to_bytes(8, "little", signed=True))
            self._hash.update(bytes(flat[whole:].tolist()))

    def hexdigest(self) -> str:
        """The fingerprint of what was added."""
        return self._hash.hexdigest()


def pieces(reader: PayloadReader, name: str) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """A tensor's encoded parts and the number of its values in them, one piece after the other.

    A payload that is not elementwise comes as one piece.
    """
    size = math.prod(reader.shapes[name])
    if not reader.elementwise:
        yield size, reader.whole(name)
        return
    for start in range(0, size, PIECE):
        stop = min(start + PIECE, size)
        yield stop - start, reader.raw(name, start, stop)


def inspect(path: Path, info: PayloadInfo, shapes: Shapes, *, hashed: bool = True) -> Checked:
    """Lets a payload pass that fits a model of `shapes` and is finite throughout.

    Raises:
        PayloadError: it is not; the text names the tensor.
    """
    with PayloadReader(path, info, hashed=hashed) as reader:
        _compare(reader.shapes, shapes)
        fingerprint, squares = Fingerprint(), {}
        for name in shapes:
            sums = []
            for size, parts in pieces(reader, name):
                fingerprint.add(parts)
                shape = (size,) if reader.elementwise else reader.shapes[name]
                sums.append(square_sum(reader.decode(parts, shape)))
            squares[name] = math.fsum(sums)
            if not math.isfinite(squares[name]):  # fp32 squares never overflow fp64
                _explain(name, reader)
        return Checked(fingerprint.hexdigest(), squares)


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
    """Sum of squares in fp64, in bounded memory; nan or inf if a value is."""
    flat = tensor.reshape(-1)
    wide = torch.empty(min(PIECE, flat.numel()), dtype=torch.float64)
    sums = []
    for part in torch.split(flat, PIECE):
        x = wide[: part.numel()]
        x.copy_(part)
        sums.append(float(torch.dot(x, x)))
    return math.fsum(sums)


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
