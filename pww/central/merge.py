"""The streaming merge: decode, weigh, add, step, write, one tensor at a time, always the same bits.

`screen` looks at every value of every delta before anything is merged, so a nan in a last tensor
pollutes nothing; what it leaves out it names. `merge` then reads each payload again, tensor by
tensor, deltas in the order of replica and delta id: arrival order changes no bit. Memory: about
three of the largest tensors. Finite values may still add up to inf: `merge_finite` then gives the
draft up, leaves out the delta that is to blame and begins again.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pww.central.generations import Draft, Generation, Generations
from pww.codec import is_finite, require_finite
from pww.config import schema
from pww.errors import NotFiniteError, PayloadError
from pww.outer import accumulate, get_optimizer, weights
from pww.transport.payload import PayloadReader
from pww.transport.tensorfile import TensorReader
from pww.wire import PayloadInfo

CHUNK = 1 << 20
"""Values squared together in fp64."""
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
class Excluded:
    """A delta that is left out, and why."""

    delta: str
    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class Screened:
    """The deltas that may be merged, opened, and those that may not. Close it after the merge."""

    usable: tuple[tuple[StagedPayload, PayloadReader], ...]
    excluded: tuple[Excluded, ...]
    _stack: ExitStack = field(repr=False)

    def without(self, delta: str, reason: str) -> "Screened":
        """Leaves one of `usable` out as well, and what was encoded on it."""
        staged = next(one for one, _ in self.usable if one.delta == delta)
        left_out = [*self.excluded, Excluded(delta, staged.replica, reason)]
        return _sorted_out(self.usable, left_out, self._stack)

    def __enter__(self) -> "Screened":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What the merge measured. Norms are L2 over all tensors, in fp64.

    `avg_delta_norm` is the mean of `norms` under the merge's own weights; `agreement` is the merged
    Delta's norm over the same weighted sum: 1 if all replicas went the same way, `1/sqrt(k)` if k
    equal ones went at right angles. 1 when nobody moved.
    """

    merged: tuple[str, ...]
    tokens: int
    partial: bool
    delta_norm: float
    norms: tuple[float, ...]
    avg_delta_norm: float
    agreement: float


class Overflow(NotFiniteError):
    """The step would leave a value that is not finite; `delta` is the one to leave out."""

    def __init__(self, tensor: str, delta: str) -> None:
        self.tensor, self.delta = tensor, delta
        super().__init__(f"merging it would make theta not finite: tensor {tensor}")

    def __reduce__(self) -> tuple[type["Overflow"], tuple[str, str]]:
        """Keeps both when the error travels from rank to rank."""
        return type(self), (self.tensor, self.delta)


def inspect(path: Path, info: PayloadInfo, shapes: Shapes) -> PayloadReader:
    """An opened payload that fits a model of `shapes` and is finite throughout.

    Raises:
        PayloadError: it is not; the text names the tensor.
    """
    reader = PayloadReader(path, info)
    try:
        _compare(reader.shapes, shapes)
        for name in shapes:
            try:
                require_finite(reader.tensor(name))
            except PayloadError as fault:
                raise PayloadError(f"tensor {name}: {fault}") from fault
    except BaseException:
        reader.close()
        raise
    return reader


def screen(deltas: Sequence[StagedPayload], shapes: Shapes) -> Screened:
    """Sorts out what cannot be merged: damaged, not finite, another model's, encoded on such."""
    stack = ExitStack()
    usable: list[tuple[StagedPayload, PayloadReader]] = []
    excluded: list[Excluded] = []
    for staged in sorted(deltas, key=lambda d: (d.replica, d.delta)):
        try:
            reader = stack.enter_context(inspect(staged.path, staged.info, shapes))
        except PayloadError as fault:
            excluded.append(Excluded(staged.delta, staged.replica, str(fault)))
        else:
            usable.append((staged, reader))
    return _sorted_out(usable, excluded, stack)


def _sorted_out(
    opened: Iterable[tuple[StagedPayload, PayloadReader]],
    left_out: Iterable[Excluded],
    stack: ExitStack,
) -> Screened:
    """Leaves out, too, what was encoded on what is left out: its residual was never adopted."""
    excluded = {one.delta: one for one in left_out}
    usable = {staged.delta: (staged, reader) for staged, reader in opened}
    usable = {delta: pair for delta, pair in usable.items() if delta not in excluded}
    while orphans := [d for d, (staged, _) in usable.items() if staged.prev in excluded]:
        for delta in orphans:
            staged, _ = usable.pop(delta)
            reason = f"it was encoded on delta {staged.prev}, which was left out"
            excluded[delta] = Excluded(delta, staged.replica, reason)
    return Screened(tuple(usable.values()), tuple(excluded.values()), stack)


def merge_finite(
    base: Generation,
    screened: Screened,
    *,
    generations: Generations,
    outer: schema.Outer,
    discount: float,
) -> tuple[MergeResult | None, Screened]:
    """The generation after `base`, of all that can be merged; and who was left out in the end.

    None, and no generation, if nobody is left: the round is void.

    Raises:
        OSError: it could not be written.
    """
    while screened.usable:
        try:
            with generations.draft(base.info.round + 1, shapes_of(base)) as draft:
                result = merge(base, screened.usable, outer=outer, discount=discount, out=draft)
        except Overflow as fault:
            screened = screened.without(fault.delta, str(fault))
        else:
            return result, screened
    return None, screened


def merge(
    base: Generation,
    usable: Sequence[tuple[StagedPayload, PayloadReader]],
    *,
    outer: schema.Outer,
    discount: float,
    out: Draft,
) -> MergeResult:
    """Writes the outer step from `base` under the weighted mean of `usable` to `out`.

    A round steps as a partial phase only if every delta in it is partial.

    Raises:
        Overflow: theta or momentum would not be finite. It names the delta that is largest in that
            tensor, the first of several.
    """
    staged = [one for one, _ in usable]
    share = weights([d.tokens for d in staged], [d.staleness for d in staged], discount)
    partial = all(d.partial for d in staged)
    optimizer = get_optimizer(outer)
    squares, total = [0.0] * len(usable), 0.0

    here = [0.0] * len(usable)  # squares in the tensor at hand

    def decoded(name: str) -> Iterator[torch.Tensor]:
        for i, (_, payload) in enumerate(usable):
            delta = payload.tensor(name)
            here[i] = square_sum(delta)
            squares[i] += here[i]
            yield delta
            del delta

    with TensorReader(base.theta) as thetas, TensorReader(base.momentum) as momenta:
        for name in thetas.names:
            mean = accumulate(decoded(name), share)
            total += square_sum(mean)
            theta, momentum = thetas.get(name), momenta.get(name)
            optimizer.step(theta, momentum, mean, partial=partial)
            del mean
            if not (is_finite(theta) and is_finite(momentum)):
                raise Overflow(name, staged[here.index(max(here))].delta)
            out.add(name, theta=theta, momentum=momentum)
            del theta, momentum
    norms = tuple(math.sqrt(square) for square in squares)
    travelled = math.fsum(p * norm for p, norm in zip(share, norms, strict=True))
    return MergeResult(
        merged=tuple(d.delta for d in staged),
        tokens=sum(d.tokens for d in staged),
        partial=partial,
        delta_norm=math.sqrt(total),
        norms=norms,
        avg_delta_norm=travelled / math.fsum(share),
        agreement=math.sqrt(total) / travelled if travelled else 1.0,
    )


def shapes_of(generation: Generation) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a generation's parameters, in file order."""
    with TensorReader(generation.theta) as reader:
        return {name: reader.shape(name) for name in reader.names}


def square_sum(tensor: torch.Tensor) -> float:
    """Sum of squares in fp64, in bounded memory."""
    parts = torch.split(tensor.reshape(-1), CHUNK)
    return math.fsum(float(part.double().square().sum()) for part in parts)


def _compare(theirs: Shapes, ours: Shapes) -> None:
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise PayloadError(
                f"tensor {name} has shape {theirs.get(name, 'none')} in the delta and "
                f"{ours.get(name, 'none')} here: it was trained from another model"
            )
