"""What an exchange costs in bytes: what is sent, and what is on the wire of three networks.

Per worker and exchange, p workers, payload P: all-gather `(p - 1) P`; ring `2 (p - 1) / p P` where
vectors can be added on the way, else they are gathered; star up P, and down P where everything is
sent or what the merged vector has, if that is less than all of it.
"""

from dataclasses import dataclass, fields

import torch

from pww.codec import Codec
from pww.lab.stack import Shapes

INDEX_PARTS = ("places", "keys")
"""Parts of a payload that say where values are; the others are values and their scales."""


@dataclass(slots=True)
class Traffic:
    """Bytes of one worker, or of several exchanges added."""

    payload: int = 0
    values: int = 0
    indices: int = 0
    all_gather: int = 0
    ring: int = 0
    star_up: int = 0
    star_down: int = 0

    def add(self, other: "Traffic") -> None:
        """Counts another exchange."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def row(self) -> dict[str, int]:
        """As records have it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def all_gather(payload: int, *, workers: int) -> int:
    """Bytes that a worker sends (or receives) when everybody gets everybody's payload."""
    return (workers - 1) * payload


def ring(payload: int, *, workers: int) -> int:
    """Bytes that a worker sends in a ring all-reduce of a dense payload."""
    return round(2 * (workers - 1) * payload / workers)


def sparse_payload(size: int, *, kept: float, value_bytes: int, index_bytes: int) -> int:
    """Bytes of the `kept` share of `size` values, each with its place."""
    return round(size * kept) * (value_bytes + index_bytes)


def chunked_payload(size: int, *, chunk: int, keep: int, value_bytes: int, index_bytes: int) -> int:
    """Bytes of `keep` coefficients of each chunk, each with its place in it."""
    return -(-size // chunk) * keep * (value_bytes + index_bytes)


def is_sparse(codec: Codec) -> bool:
    """Whether payloads of this codec have places, so that they cannot be added on the way."""
    return codec.name.split("-")[0] in ("topk", "randomk", "dct")


def exchange(
    codec: Codec, shapes: Shapes, merged: torch.Tensor, *, workers: int, sent: int
) -> Traffic:
    """One exchange of tensors of these shapes; a worker sent `sent` values that are not zero."""
    values = indices = 0
    for shape in shapes.values():
        for part, (dtype, extent) in codec.layout(shape).items():
            size = dtype.itemsize * torch.Size(extent).numel()
            if part in INDEX_PARTS:
                indices += size
            else:
                values += size
    payload = values + indices
    gathered = all_gather(payload, workers=workers)
    down = payload
    if sparse := is_sparse(codec):
        each = payload / max(sent, 1)
        down = min(round(each * int(torch.count_nonzero(merged))), 4 * merged.numel())
    return Traffic(
        payload=payload,
        values=values,
        indices=indices,
        all_gather=gathered,
        ring=gathered if sparse else ring(payload, workers=workers),
        star_up=payload,
        star_down=down,
    )
