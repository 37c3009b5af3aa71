"""The streaming merge: read, decode, weigh, add, step, write, a piece at a time, the same bits.

Deltas come in the order of replica and delta id: arrival order changes no bit. Each payload is read
once more and must be what was inspected, to the bit; if one is not, or if finite values add up to
inf, `merge_finite` gives the draft up, leaves out the delta that is to blame, by name, and begins
again: nothing of it was published. The arithmetic is `merge_pieces`. Memory: a few pieces of 2 MiB
for each thread, whatever the tensors' sizes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pww.central.draft import Draft
from pww.central.generations import Generation, Generations
from pww.central.merge_pieces import Changed, NotFiniteStep, Step, Unmergeable, merge_pieces
from pww.central.screening import Opened, Screened, inspect
from pww.codec import Codec
from pww.config import schema
from pww.errors import NotFiniteError, PayloadError
from pww.outer import get_optimizer, norm_clips, weights
from pww.transport.tensorfile import TensorReader


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What the merge measured. Norms are L2 over all tensors, to a few 1e-6.

    `norms` are those of the deltas as they came; `avg_delta_norm` is their mean under the merge's
    own weights, `agreement` the merged Delta's norm over the same weighted sum: 1 if all replicas
    went the same way, `1/sqrt(k)` if k equal ones went at right angles. 1 when nobody moved.
    """

    merged: tuple[str, ...]
    tokens: int
    partial: bool
    delta_norm: float
    norms: tuple[float, ...]
    clipped: tuple[str, ...]  # the deltas whose norm was brought down
    avg_delta_norm: float
    agreement: float


class Overflow(NotFiniteError, Unmergeable):
    """The step would leave a value that is not finite; `delta` is the one to leave out."""

    def __init__(self, tensor: str, delta: str) -> None:
        self.tensor, self.delta = tensor, delta
        super().__init__(f"merging it would make theta not finite: tensor {tensor}")

    def __reduce__(self) -> tuple[type["Overflow"], tuple[str, str]]:
        """Keeps both when the error travels from rank to rank."""
        return type(self), (self.tensor, self.delta)


def merge_finite(
    base: Generation,
    screened: Screened,
    *,
    number: int,
    generations: Generations,
    diloco: schema.Diloco,
    down: Codec | None = None,
) -> tuple[MergeResult | None, Screened]:
    """Generation `number` from `base`, of all that can be merged; and who was left out in the end.

    None, and no generation, if nobody is left: the round is void. With a `down` codec theta is what
    sites will have that apply the encoded update.

    Raises:
        OSError: it could not be written.
    """
    while screened.usable:
        try:
            with generations.draft(number, shapes_of(base), down=down) as draft:
                result = merge(base, screened.usable, diloco=diloco, out=draft, down=down)
        except Unmergeable as fault:
            screened = screened.without(fault.delta, str(fault))
        else:
            return result, screened
    return None, screened


def merge(
    base: Generation,
    usable: Sequence[Opened],
    *,
    diloco: schema.Diloco,
    out: Draft,
    down: Codec | None = None,
) -> MergeResult:
    """Writes the outer step from `base` under the weighted mean of `usable` to `out`.

    A round steps as a partial phase only if every delta in it is partial.

    Raises:
        Overflow: theta or momentum would not be finite. It names the delta that is largest in that
            tensor, the first of several.
        Changed: a payload is not what was inspected.
    """
    staged = [one.staged for one in usable]
    norms = tuple(one.checked.norm for one in usable)
    clips = norm_clips(norms, diloco.norm_clip)
    share = weights(
        [d.tokens for d in staged],
        [d.staleness for d in staged],
        diloco.staleness_discount,
        clips,
    )
    partial = all(d.partial for d in staged)
    step = Step(
        optimizer=get_optimizer(diloco.outer, contributors=len({d.replica for d in staged})),
        partial=partial, share=share,
    )  # fmt: skip
    try:
        total = merge_pieces(base, usable, step=step, out=out, down=down)
    except NotFiniteStep as fault:
        raise _blame(fault.tensor, usable) from None
    travelled = math.fsum(p * norm for p, norm in zip(share, norms, strict=True))
    return MergeResult(
        merged=tuple(d.delta for d in staged),
        tokens=sum(d.tokens for d in staged),
        partial=partial,
        delta_norm=math.sqrt(total),
        norms=norms,
        clipped=tuple(d.delta for d, clip in zip(staged, clips, strict=True) if clip < 1.0),
        avg_delta_norm=travelled / math.fsum(share),
        agreement=math.sqrt(total) / travelled if travelled else 1.0,
    )


def _blame(name: str, usable: Sequence[Opened]) -> Unmergeable:
    """Why the step left a value of tensor `name` that is not finite."""
    for one in usable:
        shapes = one.reader.shapes
        try:
            changed = inspect(one.staged.path, one.staged.info, shapes) != one.checked
        except PayloadError:
            changed = True
        if changed:
            return Changed(one.staged.delta)
    largest = max(usable, key=lambda one: one.checked.squares[name])
    return Overflow(name, largest.staged.delta)


def shapes_of(generation: Generation) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a generation's parameters, in file order."""
    with TensorReader(generation.theta) as reader:
        return {name: reader.shape(name) for name in reader.names}
