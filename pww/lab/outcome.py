"""What every run comes to, whatever it trained."""

from dataclasses import dataclass

Row = dict[str, object]
"""A line of `metrics.jsonl`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. `diverged`: a loss that is no number, or above that of the start."""

    loss: float
    diverged: bool
    steps: int
    tokens: int
    bytes: dict[str, int]
