"""What an exchange costs in bytes: what is sent, and what is on the wire of three networks.

Per worker and exchange, p workers that take part, payload P: all-gather `(p - 1) P`; ring
`2 (p - 1) / p P` where vectors can be added on the way, else they are gathered; star up P. Down the
star comes the merged vector: P where it has the codec's own form (fp32, bf16, fp16), else fp32,
since the sum of quantised vectors is on nobody's grid: all n values or, of vectors that are zero
but in places, the union of those with their places, whichever is less.
"""

import math
from dataclasses import dataclass, fields

import torch

from pww.codec import Codec
from pww.lab.stack import Shapes

INDEX_PARTS = ("places", "keys")
"""Parts of a payload that say where values are; the others are values and their scales."""
MERGED_BYTES = 4
"""Of a merged value: fp32, as it is applied."""
PLACE_BYTES = 1.5
"""Of its place: 12 bits, as in `pww.codec.places`."""


@dataclass(slots=True)
class Traffic:
    """Bytes of one worker in one exchange, or of several added."""

    payload: int = 0
    values: int = 0
    indices: int = 0
    all_gather: int = 0
    ring: int = 0
    star_up: int = 0
    star_down: int = 0

    def add(self, other: "Traffic", *, times: int) -> None:
        """Counts another exchange, of so many workers."""
        for field in fields(self):
            more = times * getattr(other, field.name)
            setattr(self, field.name, getattr(self, field.name) + more)

    def share(self, workers: int) -> "Traffic":
        """The mean over so many workers."""
        return Traffic(*(round(count / workers) for count in self.row().values()))

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


def adds_up(codec: Codec) -> bool:
    """Whether payloads are plain numbers, which a ring can add on the way.

    Others have scales or places of their own in every payload: their sum is no such payload.
    """
    return codec.name in ("fp32", "bf16", "fp16")


def keeps_places(codec: Codec) -> bool:
    """Whether a decoded vector is zero but for the values that were sent."""
    return codec.name.split("-")[0] in ("topk", "randomk")


def exchange(
    codec: Codec, shapes: Shapes, merged: torch.Tensor, *, senders: int, added: bool
) -> Traffic:
    """One exchange of tensors of these shapes, of each of its `senders`.

    Args:
        codec: What wrote the payloads.
        shapes: The tensors that were exchanged.
        merged: What they became.
        senders: Workers that took part.
        added: Whether the merge is a sum of vectors, and so can be made on the way.
    """
    values = indices = 0
    for shape in shapes.values():
        for part, (dtype, extent) in codec.layout(shape).items():
            size = dtype.itemsize * torch.Size(extent).numel()
            if part in INDEX_PARTS:
                indices += size
            else:
                values += size
    payload = values + indices
    gathered = all_gather(payload, workers=senders)
    down = payload if adds_up(codec) else MERGED_BYTES * merged.numel()
    if keeps_places(codec):
        union = int(torch.count_nonzero(merged))
        down = min(down, math.ceil(union * (MERGED_BYTES + PLACE_BYTES)))
    return Traffic(
        payload=payload,
        values=values,
        indices=indices,
        all_gather=gathered,
        ring=ring(payload, workers=senders) if added and adds_up(codec) else gathered,
        star_up=payload,
        star_down=down,
    )
