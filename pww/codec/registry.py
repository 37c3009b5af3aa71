"""From a codec's name to the codec: one `case` each.

A name is the kind and its parameters: `int4`, `topk-64-b2` (keep 64 of 4096, values of 2 bits),
`randomk-64`, `randomk-64-raw` (not scaled, for error feedback), `dct2-64`, `dither-4` (4 bits).
"""

import re

from pww.codec.base import Codec
from pww.codec.bf16 import Bf16
from pww.codec.blocks import BLOCK, Blocked, Rows
from pww.codec.dct import DctRows
from pww.codec.dither import DitherRows
from pww.codec.fp16 import Fp16Rows
from pww.codec.fp32 import Fp32
from pww.codec.int2 import Int2Rows
from pww.codec.int4 import Int4Rows
from pww.codec.int8 import Int8Rows
from pww.codec.randomk import RandomKRows
from pww.codec.sign import SignRows
from pww.codec.topk import TopKRows
from pww.errors import PayloadError

FORMS = (
    "fp32", "bf16", "fp16", "int8", "int4", "int2", "sign", "topk-KEEP-b2|b4|b8|b16",
    "randomk-KEEP", "randomk-KEEP-raw", "dct2-KEEP", "dither-4|8",
)  # fmt: skip
"""All names; KEEP is 1 to 4096."""


def codec_named(name: str) -> Codec:
    """The codec of a configuration, or the one that a payload from elsewhere claims.

    Raises:
        PayloadError: there is none of that name here.
    """
    match name.split("-"):
        case ["fp32"]:
            return Fp32()
        case ["bf16"]:
            return Bf16()
        case ["fp16" | "int8" | "int4" | "int2" | "sign"]:
            return Blocked(name, _values(name))
        case ["topk", keep, "b2" | "b4" | "b8" | "b16" as bits] if _is_keep(keep):
            kind = {"b2": "int2", "b4": "int4", "b8": "int8"}.get(bits, "fp16")
            return Blocked(name, TopKRows(int(keep), _values(kind)))
        case ["randomk", keep] if _is_keep(keep):
            return Blocked(name, RandomKRows(int(keep), scaled=True))
        case ["randomk", keep, "raw"] if _is_keep(keep):
            return Blocked(name, RandomKRows(int(keep), scaled=False))
        case ["dct2", keep] if _is_keep(keep):
            return Blocked(name, DctRows(int(keep)))
        case ["dither", "4" | "8" as size]:
            return Blocked(name, DitherRows(int(size)))
        case _:
            raise PayloadError(
                f"codec {name[:40]!r} is not known here (known: {', '.join(FORMS)}); "
                "run the same version of pww on every side"
            )


def _values(kind: str) -> Rows:
    """The codecs that write every value of a row."""
    match kind:
        case "fp16":
            return Fp16Rows()
        case "int8":
            return Int8Rows()
        case "int4":
            return Int4Rows()
        case "int2":
            return Int2Rows()
        case "sign":
            return SignRows()
        case _:
            raise AssertionError(kind)


def _is_keep(text: str) -> bool:
    """One way to write each count, so that equal codecs have equal names."""
    return re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII) is not None and int(text) <= BLOCK
