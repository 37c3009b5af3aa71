"""The name of a cell: short, readable, the same for the same overrides, different for others.

    {"codec": "topk", "diloco.inner_steps": 16}  ->  codec=topk,H=16

The order of the overrides and the spelling of a number (`1e-1`, `0.10`) make no difference, and a
name can be read back: it is what `predict cell=` and `report against=` take.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeAlias

from pww.errors import LabError

Value: TypeAlias = "str | int | float | bool | list[Value]"
"""What an override may set."""

BASE = "base"
"""The cell without overrides."""
SHORT = {
    "diloco.inner_steps": "H",
    "diloco.outer.optimizer": "outer",
    "diloco.outer.lr": "outer_lr",
    "diloco.outer.momentum": "momentum",
    "diloco.overlap": "overlap",
    "codec.keep": "keep",
    "codec.value_bits": "bits",
    "codec.feedback": "feedback",
    "codec.force": "force",
}
"""Names of keys that are typed often; all others are written whole."""
WHOLE = {short: key for key, short in SHORT.items()}
MAX_LENGTH = 100
"""Longer names are cut: a file system takes 255 bytes, with the seed and the rate in them."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def cell_id(cell: Mapping[str, Value]) -> str:
    """The cell's name, fit for a folder."""
    texts = {key: text_of(cell[key]) for key in sorted(cell)}
    name = ",".join(f"{SHORT.get(key, key)}={text}" for key, text in texts.items())
    safe = re.sub(r"[^\w.=,+-]", "_", name, flags=re.ASCII)
    if safe == name and len(name) <= MAX_LENGTH:
        return name or BASE
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]
    return f"{safe[:MAX_LENGTH]}~{digest}"


def parse_cell(text: str) -> str:
    """The name of the cell that a person means: overrides in any order, or a name as it stands.

    Raises:
        LabError: it is neither.
    """
    text = text.strip()
    if text == BASE or "~" in text:
        return text
    cell: dict[str, Value] = {}
    for word in re.split(r"[,\s]+(?![^\[]*\])", text):
        key, equals, value = word.partition("=")
        if not key or not equals or not value:
            raise LabError(
                f"{text or 'an empty cell'}: a cell is its overrides, such as codec=topk,H=16, or "
                f"{BASE} for the one that has none"
            )
        cell[WHOLE.get(key, key)] = value
    return cell_id(cell)


def text_of(value: Value) -> str:
    """One spelling for each value: 0.1 for `1e-1`, 16 for `16.0`, true for `True`."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return _number(value)
        case str():
            if NUMBER.fullmatch(value):
                return _number(float(value) if re.search(r"[.eE]", value) else int(value))
            return value.lower() if value in ("True", "False") else value
        case _:
            return f"[{','.join(text_of(one) for one in value)}]"


def _number(value: int | float) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return repr(value)
