"""Ranks tell each other small values, and what each of them found wrong."""

import json
from collections.abc import Sequence
from typing import Any

import torch

from pww.replica.circle import Circle
from pww.smoke.book import SHOWN


def gathered(circle: Circle, value: Any) -> list[Any]:
    """Collective: everybody's value that JSON can say, in order, on every rank."""
    data = json.dumps(value).encode()
    sizes = [int(size) for (size,) in circle.numbers(float(len(data)))]
    mine = torch.zeros(max(sizes), dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = circle.gather(mine)
    return [
        json.loads(bytes(row[:size].tolist()).decode())
        for row, size in zip(rows, sizes, strict=True)
    ]


def complaints(circle: Circle, mine: str) -> str:
    """Collective: what ranks say is wrong, as one text; "" where nobody complains."""
    said = [f"rank {rank} {text}" for rank, text in enumerate(gathered(circle, mine)) if text]
    return shortened(said)


def shortened(said: Sequence[str]) -> str:
    """The first few."""
    more = f"; {len(said) - SHOWN} more ranks" if len(said) > SHOWN else ""
    return "; ".join(said[:SHOWN]) + more
