"""The name of a cell: short, readable, the same for the same overrides, different for others.

    {"codec": "topk", "diloco.inner_steps": 16}  ->  codec=topk,H=16

The order of the overrides and the spelling of a number (`1e-1`, `0.10`) make no difference, and a
name can be read back: it is what `predict cell=` and `report against=` take.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    "lab.steps": "steps",
    "task.size": "size",
    "method.delay": "delay",
    "method.overlap_steps": "overlap_steps",
    "method.eager": "eager",
    "method.fragments": "fragments",
    "method.participation": "participation",
    "attack.workers": "attackers",
    "attack.scale": "attack_scale",
    "attack.coordinated": "coordinated",
}
"""Names of keys that are typed often; all others are written whole."""
WHOLE = {short: key for key, short in SHORT.items()}
AT = "@"
"""`H=16@0.003`: that cell at that learning rate, tuned or not."""
MAX_LENGTH = 100
"""Longer names are cut: a file system takes 255 bytes, with the seed and the rate in them."""
PLAIN = re.compile(r"[\w.+-]+", re.ASCII)
"""Values that can be part of a name as they are."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def cell_id(cell: Mapping[str, Value]) -> str:
    """The cell's name, fit for a folder."""
    texts = {key: text_of(cell[key]) for key in sorted(cell)}
    name = ",".join(f"{SHORT.get(key, key)}={text}" for key, text in texts.items())
    is_plain = (
        all(PLAIN.fullmatch(text) for text in texts.values()) and not texts.keys() & WHOLE.keys()
    )
    if is_plain and len(name) <= MAX_LENGTH:
        return name or BASE
    safe = re.sub(r"[^\w.=,+-]", "_", name, flags=re.ASCII)
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]
    return f"{safe[:MAX_LENGTH]}~{digest}"


@dataclass(frozen=True, slots=True)
class Reference:
    """What a person calls a cell by: its name, or as many of its overrides as tell it apart.

    `name` is `cell_id` of what was typed; a name that was cut can be meant as a whole only.
    """

    name: str
    texts: Mapping[str, str]

    def means(self, cell: Mapping[str, Value], common: Mapping[str, Value]) -> bool:
        """Whether this is the cell: it may leave out what all cells of its study have in common."""
        if self.name == cell_id(cell):
            return True
        if "~" in self.name:
            return False
        texts = {key: text_of(value) for key, value in cell.items()}
        shared = {key for key in common if text_of(common[key]) == texts.get(key)}
        return self.texts.items() <= texts.items() and texts.keys() - self.texts.keys() <= shared


def reference(text: str) -> Reference:
    """What is meant by overrides in any order, or by a name as it stands; a rate is no part of it.

    Raises:
        LabError: it is neither.
    """
    text = text.partition(AT)[0].strip()
    if text == BASE or "~" in text:
        return Reference(text, {})
    cell: dict[str, Value] = {}
    for word in re.split(r"[,\s]+(?![^\[]*\])", text):
        key, equals, value = word.partition("=")
        if not key or not equals or not value:
            raise LabError(
                f"{text or 'an empty cell'}: a cell is its overrides, such as codec=topk,H=16, or "
                f"{BASE} for the one that has none"
            )
        cell[WHOLE.get(key, key)] = value
    return Reference(cell_id(cell), {key: text_of(value) for key, value in cell.items()})


def full_name(text: str) -> str:
    """The one spelling of a cell that a person typed, with its rate if there is one.

    Raises:
        LabError: it is no cell, or no rate.
    """
    name, rate = reference(text).name, rate_of(text)
    return name if rate is None else f"{name}{AT}{rate:g}"


def rate_of(text: str) -> float | None:
    """The learning rate after the `@`.

    Raises:
        LabError: it is no number.
    """
    _, at, rate = text.partition(AT)
    try:
        return float(rate) if at else None
    except ValueError:
        raise LabError(f"{text}: {rate or 'nothing'} is no learning rate") from None


def common(cells: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """The overrides that all of the cells have."""
    rest = [dict(cell) for cell in cells]
    if not rest:
        return {}
    return {
        key: value
        for key, value in rest[0].items()
        if all(key in cell and text_of(cell[key]) == text_of(value) for cell in rest)
    }


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
