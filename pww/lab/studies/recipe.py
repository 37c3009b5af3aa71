"""A study written down: the command lines that run it, and what its source found.

Each line is what a person would type after `python -m pww.lab`; `common` goes before every line.
A source's figure is an interval for a number of recorded runs, so that whether ours agrees is
computed and not argued.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pww.lab.predictions import NOTHING, Quantity


@dataclass(frozen=True, slots=True)
class Compared:
    """A quantity of one cell, or of two, lies in an interval."""

    quantity: Quantity
    cell: str
    low: float
    high: float
    against: str = NOTHING


@dataclass(frozen=True, slots=True)
class Ordered:
    """The cells' losses rise in this order."""

    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Linear:
    """The loss above `base` is proportional to `at`, one value a cell, with that R² or more."""

    base: str
    cells: tuple[str, ...]
    at: tuple[float, ...]
    least: float


@dataclass(frozen=True, slots=True)
class ExcessRatio:
    """(cell - base) / (against - against_base), of losses, lies in an interval."""

    cell: str
    base: str
    against: str
    against_base: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RuleBeatsRival:
    """The composition rule foretells held-out cells better than its rival, in most splits."""


Check: TypeAlias = Compared | Ordered | Linear | ExcessRatio | RuleBeatsRival
Basis: TypeAlias = Literal["figure", "shape"]


@dataclass(frozen=True, slots=True)
class Expected:
    """One figure of the source.

    `source`: as it is given there; `check`: what of our runs it is compared with. `basis`: the
    source's own interval, or only its shape (an order, a sign), since size and budget are ours.
    """

    what: str
    source: str
    check: Check
    basis: Basis = "shape"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A study: `against` is the cell that its table compares with."""

    name: str
    about: str
    common: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    against: str
    expected: tuple[Expected, ...]

    def command(self, line: tuple[str, ...], more: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The words after `python -m pww.lab` of one line; what comes later wins."""
        return (f"lab.study={self.name}", *self.common, *line, *more, "-m")
