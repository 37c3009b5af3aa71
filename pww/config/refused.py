"""What pydantic refuses, as sentences: the key's path, the value given, the values allowed.

The allowed values are read from the schema itself (its JSON form), so a sentence cannot disagree
with the check.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from pww.config.faults import did_you_mean
from pww.config.schema import Config, Section

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

POINTERS = {
    ("model.dtype", "fp16"): "fp16 has no gradient scaler here, use bf16",
}
"""What to say besides the allowed values, where people commonly go wrong."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One sentence and the key that it is about."""

    key: str
    sentence: str


def shown(value: object) -> str:
    """A value as it would be typed after `key=`."""
    if isinstance(value, str):
        return value
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    )


def explain(errors: "Sequence[ErrorDetails]", *, model: type[Section] = Config) -> Iterator[Fault]:
    """One fault for each of pydantic's errors about a `model`."""
    book = _Book(model)
    for error in errors:
        key, node, parent = book.find(error["loc"])
        leaf = key.rpartition(".")[2]
        value = shown(error["input"])
        match error["type"]:
            case "extra_forbidden":
                names = sorted(parent.get("properties", {}))
                where = key.rpartition(".")[0]
                has = f"{where} has" if where else "there are"
                near = did_you_mean(leaf, names)
                yield Fault(key, f"{key}={value}: no such key; {has} {', '.join(names)}{near}")
            case "missing":
                yield Fault(key, f"{key}: missing; give {key}=…: {book.allowed(node)}")
            case "union_tag_invalid" | "union_tag_not_found":
                tags = list(node["discriminator"]["mapping"])
                tag = node["discriminator"]["propertyName"]
                key = f"{key}.{tag}"
                given = error["input"].get(tag) if isinstance(error["input"], Mapping) else None
                near = did_you_mean(str(given), tags)
                yield Fault(key, f"{key}={shown(given)}: one of {', '.join(tags)}{near}")
            case _:
                hint = _near(node, error["input"]) + _pointer(key, error["input"])
                yield Fault(key, f"{key}={value}: {book.allowed(node)}{hint}")


def _near(node: Mapping[str, Any], value: object) -> str:
    return did_you_mean(str(value), [str(v) for v in node.get("enum", [])])


def _pointer(key: str, value: object) -> str:
    pointer = POINTERS.get((key, str(value)))
    return f"; {pointer}" if pointer else ""


def _present(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Of a schema that is something or null, the something."""
    some = [one for one in node.get("anyOf", []) if one.get("type") != "null"]
    return some[0] if len(some) == 1 and len(node["anyOf"]) == 2 else None


class _Book:
    """The schema as JSON, walked by pydantic's error locations."""

    def __init__(self, model: type[Section]) -> None:
        self._root = model.model_json_schema()

    def _open(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema behind a reference, and of a section that may be absent its own."""
        while "$ref" in node or _present(node):
            if one := _present(node):
                node = one
                continue
            name = node["$ref"].rpartition("/")[2]
            node = {**self._root["$defs"][name], **{k: v for k, v in node.items() if k != "$ref"}}
        return node

    def find(self, loc: tuple[int | str, ...]) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        """Dotted key, its schema and its parent's; the tags of unions are no part of a key."""
        key = ""
        node = parent = self._open(self._root)
        for part in loc:
            if "discriminator" in node:
                node = self._open({"$ref": node["discriminator"]["mapping"][part]})
                continue
            if "anyOf" in node:  # the name of the one that was tried
                continue
            parent = node
            if isinstance(part, int):
                key, node = f"{key}[{part}]", self._open(node.get("items", {}))
                continue
            key = f"{key}.{part}" if key else part
            below = node.get("properties", {}).get(part, node.get("additionalProperties"))
            node = self._open(below if isinstance(below, Mapping) else {})
        return key, node, parent

    def allowed(self, node: Mapping[str, Any]) -> str:
        """The values that a key may have, in words."""
        if "enum" in node or "const" in node:
            values = node.get("enum", [node.get("const")])
            shown_values = [shown(v) if v != "" else '""' for v in values]
            return f"one of {', '.join(shown_values)}" if len(values) > 1 else shown_values[0]
        if "discriminator" in node:
            kinds = list(node["discriminator"]["mapping"])
            return f"keys, with {node['discriminator']['propertyName']} one of {', '.join(kinds)}"
        if "anyOf" in node:
            return ", or ".join(self.allowed(self._open(one)) for one in node["anyOf"])
        match node.get("type"):
            case "integer":
                return "a whole number" + _bounds(node)
            case "number":
                return "a number" + _bounds(node)
            case "boolean":
                return "true or false"
            case "string":
                return str(node["description"]) if "pattern" in node else "text (in quotes)"
            case "array":
                return f"a list, each item {self.allowed(self._open(node.get('items', {})))}"
            case _:
                return f"keys: {', '.join(sorted(node.get('properties', {})))}"


def _bounds(node: Mapping[str, Any]) -> str:
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    words = []
    if low is not None:
        words.append(f"{low:g} or more" if isinstance(low, float) else f"{low} or more")
    if above is not None:
        words.append(f"more than {above:g}")
    if high is not None:
        words.append(f"at most {high:g}" if isinstance(high, float) else f"at most {high}")
    if below is not None:
        words.append(f"less than {below:g}" if isinstance(below, float) else f"less than {below}")
    return ", " + ", ".join(words) if words else ""
