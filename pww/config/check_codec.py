"""What a codec may do: what it drops must come back, unless someone insists."""

import math
from collections.abc import Iterator

from pww.config.schema import Config
from pww.config.schema.codec import Codec

COARSE_BITS = 2.0
"""So many bits of a parameter, or fewer, are known to cost quality without error feedback."""
COARSE_VALUE_BITS = 4
"""Of a codec that drops values: so many bits of those that it sends."""
PLACE_BITS, BLOCK = 12, 4096


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


def coarse_has_feedback(config: Config) -> Iterator[str]:
    """See `coarse`."""
    yield from coarse(config.codec)


def coarse(codec: Codec) -> Iterator[str]:
    """What few bits lose must come back, unless someone insists."""
    if codec.kind not in ("int2", "sign", "topk", "dct"):
        return
    bits = wire_bits(codec)
    few = bits <= COARSE_BITS
    if codec.kind == "topk":
        few = few or codec.value_bits <= COARSE_VALUE_BITS
    if few and not codec.feedback and not codec.force:
        yield (
            f"codec.feedback=false: {codec.name} sends {bits:.2g} bits a parameter, and what it "
            "drops is known to cost +32 % loss without error feedback; use codec.feedback=true, "
            "or codec.force=true to do so all the same"
        )
    elif codec.force and (codec.feedback or not few):
        yield (
            f"codec.force=true: has no effect with codec.feedback={str(codec.feedback).lower()} "
            f"and {codec.name}, where nothing is refused; leave it out"
        )


RULES = ((("codec",), coarse_has_feedback),)
