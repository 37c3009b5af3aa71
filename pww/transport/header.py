"""The safetensors header: built for the writer, and believed by the reader only after every check.

    8 bytes   little-endian length of the header
    header    JSON {"__metadata__": {str: str}, name: {"dtype", "shape", "data_offsets"}}, padded
              with spaces so that the data starts at a multiple of 64
    data      the tensors' bytes, one after the other in header order, without gaps

Stricter than the format: names are printable, and nothing is there twice or left over. No I/O.
Source: the format's description in the safetensors repository.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pww.errors import PayloadError
from pww.transport.memory import ALIGNMENT

MAX_HEADER = 16 << 20
"""Bytes; about 100,000 tensors. A longer one is an attack or garbage."""
MAX_NAME = 512
MAX_RANK = 8
MAX_BYTES = 1 << 56
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file; `start` counts from the first byte of the data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds, in file order."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data_bytes: int


def build(
    layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, Header]:
    """The length and header bytes that start a file, and the same as values.

    Raises:
        PayloadError: a name or dtype that the reader would refuse.
    """
    rows: dict[str, Any] = {"__metadata__": dict(metadata)}
    entries: dict[str, Entry] = {}
    end = 0
    for name, (dtype, shape) in layout.items():
        _check_name(name)
        if dtype not in _NAMES:
            raise PayloadError(f"tensor {name}: {dtype} has no place in a file (known: {_known()})")
        size = dtype.itemsize * math.prod(shape)
        entries[name] = Entry(dtype, tuple(shape), end, size)
        rows[name] = {
            "dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [end, end + size],
        }  # fmt: skip
        end += size
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise PayloadError(f"a header of {len(text)} bytes is above the limit of {MAX_HEADER}")
    return len(text).to_bytes(8, "little") + text, Header(entries, dict(metadata), end)


def parse(text: bytes, *, data_bytes: int) -> Header:
    """The header of a file whose data is `data_bytes` long.

    Raises:
        PayloadError: anything that a well-formed file of exactly this length would not have.
    """
    rows = _load(text)
    metadata = rows.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise PayloadError("header: __metadata__ is not a table of texts")
    read = {name: _entry(name, row) for name, row in rows.items()}
    # A stable sort keeps empty tensors where they are in the header.
    entries = dict(sorted(read.items(), key=lambda item: (item[1].start, item[1].size_bytes > 0)))
    end = 0
    for name, entry in entries.items():
        if entry.start != end:
            raise PayloadError(
                f"header: tensor {name} starts at {entry.start}, not at {end}: gap or overlap"
            )
        end += entry.size_bytes
    if end != data_bytes:
        raise PayloadError(
            f"the header describes {end} bytes of data and {data_bytes} are there: "
            "the file is cut off or damaged; fetch it again"
        )
    return Header(entries, metadata, end)


def _load(text: bytes) -> dict[str, Any]:
    try:
        rows = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as why:
        raise PayloadError(f"header: not a JSON table ({why})") from why
    if not isinstance(rows, dict):
        raise PayloadError("header: not a JSON table")
    return rows


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is there twice")
    return table


def _check_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name == "__metadata__":
        raise PayloadError(
            f"tensor name {name[:80]!r}: 1 to {MAX_NAME} printable characters, please"
        )


def _entry(name: str, row: Any) -> Entry:
    _check_name(name)
    if not isinstance(row, dict) or set(row) != {"dtype", "shape", "data_offsets"}:
        raise PayloadError(f"header: tensor {name} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise PayloadError(f"header: tensor {name} has dtype {dtype!r:.40} (known: {_known()})")
    if not _counts(shape) or len(shape) > MAX_RANK:
        raise PayloadError(f"header: tensor {name} has no valid shape (at most {MAX_RANK} counts)")
    if not _counts(offsets) or len(offsets) != 2:
        raise PayloadError(f"header: tensor {name} has no valid data_offsets")
    size = DTYPES[dtype].itemsize * math.prod(shape)
    if offsets[1] - offsets[0] != size:
        raise PayloadError(
            f"header: tensor {name} of shape {shape} needs {size} bytes and has "
            f"{offsets[1] - offsets[0]}"
        )
    return Entry(DTYPES[dtype], tuple(shape), offsets[0], size)


def _counts(values: Any) -> bool:
    """True for a list of plain integers from 0 to `MAX_BYTES`."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= MAX_BYTES for value in values
    )


def _known() -> str:
    return ", ".join(DTYPES)
