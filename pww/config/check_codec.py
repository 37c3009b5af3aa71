"""What a codec may do: what it drops must come back, and in time, unless someone insists."""

import math
from collections.abc import Iterator

from pww.config.schema import Config, Outer
from pww.config.schema.codec import Codec

COARSE_BITS = 2.0
"""So many bits of a parameter, or fewer, are known to cost quality without error feedback."""
COARSE_VALUE_BITS = 4
"""Of a codec that drops values: so many bits of those that it sends."""
PLACE_BITS, BLOCK = 12, 4096
"""Of a kept value's place; values that are chosen from together."""
LATE, SLOPE = 2.0, 8.0
MEASURED = 1024
"""See `largest_step`."""
AVERAGING = "diloco.outer.optimizer=sgd diloco.outer.lr=1 diloco.outer.momentum=0"


def wire_bits(codec: Codec) -> float:
    """Bits of a parameter that are sent by a codec that feedback can mend, but for scales.

    inf for the codecs that need none: all bits of every value, or unbiased draws.
    """
    match codec.kind:
        case "int2":
            return 2.0
        case "sign":
            return 1.0
        case "topk":
            return codec.keep * (PLACE_BITS + codec.value_bits) / BLOCK
        case "dct":
            return codec.keep * (PLACE_BITS + 16) / BLOCK
        case _:
            return math.inf


def what_is_dropped_comes_back(config: Config) -> Iterator[str]:
    """See `coarse` and `late`; `codec.force=true` is for what they refuse, and for nothing else."""
    codec = config.codec
    refused = [*coarse(codec), *late(codec, config.diloco.outer)]
    if not forced(codec):
        yield from refused
    elif not refused:
        yield (
            f"codec.force=true: has no effect with codec.feedback={str(codec.feedback).lower()} "
            f"and {codec.name}, where nothing is refused; leave it out"
        )


def forced(codec: Codec) -> bool:
    """Whether someone insists."""
    return codec.kind in ("int2", "sign", "topk", "dct", "randomk") and codec.force


def coarse(codec: Codec) -> Iterator[str]:
    """What few bits lose must come back."""
    if codec.kind not in ("int2", "sign", "topk", "dct") or codec.feedback:
        return
    bits = wire_bits(codec)
    few_bits = codec.kind == "topk" and codec.value_bits <= COARSE_VALUE_BITS
    if bits <= COARSE_BITS or few_bits:
        yield (
            f"codec.feedback=false: {codec.name} sends {bits:.2g} bits a parameter, and what it "
            "drops is known to cost +32 % loss without error feedback; use codec.feedback=true, "
            "or codec.force=true to do so all the same"
        )


def late(codec: Codec, outer: Outer) -> Iterator[str]:
    """What feedback brings late must not be stepped on as if it were new."""
    if codec.kind not in ("topk", "dct", "randomk") or not codec.feedback or codec.keep == BLOCK:
        return
    most = largest_step(codec.keep)
    enough = math.ceil((effective_step(outer) - LATE) / (most - LATE) * codec.keep)
    more = f", or codec.keep={enough} or more" if enough <= MEASURED else ""
    for sentence in overshoots(outer, codec.keep, of="values", key="codec", more=more):
        anyway = "; or codec.force=true to do so all the same"
        yield f"codec={codec.kind}: {codec.name} {sentence}{anyway}"


def theta_is_not_late(config: Config) -> Iterator[str]:
    """The way down has feedback too, and what it brings late overshoots in the same way."""
    if (down := config.transport.down) == "topk-64-b2":
        of, key = "values of an update", "transport.down"
        for sentence in overshoots(config.diloco.outer, 64, of=of, key=key):
            yield f"transport.down={down}: {sentence}"


def overshoots(outer: Outer, keep: int, *, of: str, key: str, more: str = "") -> Iterator[str]:
    """What happens to the values that come late under this outer step, and what to write."""
    step, most = effective_step(outer), largest_step(keep)
    if step > most:
        yield (
            f"sends {keep} of {BLOCK} {of} and the others late, and an outer step of "
            f"diloco.outer.lr / (1 - diloco.outer.momentum) = {step:.4g} overshoots with those "
            f"(above {most:.4g} it costs 10 % of loss and more, up to divergence); use "
            f"{AVERAGING}{more}, or {key}=int4, which sends every value every round"
        )


def effective_step(outer: Outer) -> float:
    """What an outer step comes to by and by: `lr / (1 - momentum)`."""
    return round(outer.lr / (1.0 - outer.momentum), 9)  # 0.7 / (1 - 0.9) is 7


def largest_step(keep: int) -> float:
    """The largest effective outer step that is let pass with `keep` of 4096 values and feedback.

    A value that was kept back comes whole, with all that it was off by; above 2 it throws theta
    further to the other side. Momentum damps nothing there: it is over before the value comes
    again. With more values fewer are late, and how much that helps is measured: the lab's toy
    (5,376 parameters), 2 workers, one seed, 200 rounds of 10 steps, loss above that of fp32 under
    the same outer optimiser, by effective step (1: averaging; 7: nesterov 0.7 / 0.9):

        sent     1     1.4    2.3     3     3.5      7
        1/4     -2 %   0 %    2 %    2 %    7 %     10 %
        1/16     1 %   4 %    8 %   18 %   17 %     30 %
        1/64     3 %   6 %   11 %   48 %   38 %   diverges

    The same for 2 and for 16 bits a value, and for dct. Form 6 of the lab's closed forms has a
    limit too, 2 (2 - r) N r / (N r^2 + 4 (1 - r)) for a share r and N replicas, of values that are
    drawn and not chosen: 0.03 for 1/64 of two, where averaging trains. How many replicas there are
    is not asked here: they choose mostly the same values, so that more do not average anything out.
    Nor is H, although the longer a phase the more comes late: of phases of 50 steps 1/64 was too
    few for averaging as well. Above 1/4 the line goes on unmeasured, and nobody is told to go
    there: many values with their places take more bits than int4 does.
    """
    return LATE + SLOPE * keep / BLOCK


RULES = (
    (("codec", "diloco.outer"), what_is_dropped_comes_back),
    (("transport.down", "diloco.outer"), theta_is_not_late),
)
