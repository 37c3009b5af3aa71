"""What a look at the machine found: one line for people, its figures for programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    told: str
    figures: Mapping[str, float] = field(default_factory=dict)  # units are in their names
