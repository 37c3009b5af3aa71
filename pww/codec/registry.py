"""From a codec's name to the codec: one `case` each."""

from typing import Literal, assert_never, get_args

from pww.codec.base import Codec
from pww.codec.bf16 import Bf16
from pww.codec.blocks import Blocked
from pww.codec.fp32 import Fp32
from pww.codec.int8 import Int8Rows
from pww.errors import PayloadError

Kind = Literal["fp32", "bf16", "int8"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def get_codec(kind: Kind) -> Codec:
    """The codec of a configuration."""
    match kind:
        case "fp32":
            return Fp32()
        case "bf16":
            return Bf16()
        case "int8":
            return Blocked(kind, Int8Rows())
        case _:
            assert_never(kind)


def codec_named(name: str) -> Codec:
    """The codec that a payload from elsewhere claims.

    Raises:
        PayloadError: there is none of that name here.
    """
    for kind in KINDS:
        if kind == name:
            return get_codec(kind)
    raise PayloadError(
        f"codec {name!r} is not known here (known: {', '.join(KINDS)}); "
        "run the same version of pww on every side"
    )
