"""Rows of text as a table: markdown for people, CSV for programs; nothing is computed here."""

import csv
import io
import math
from dataclasses import dataclass

from pww.lab.report.interval import Interval


@dataclass(frozen=True, slots=True)
class Table:
    """A header and rows of as many texts."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """With its columns aligned, so that it reads as plain text too."""
        cleaned = [[_escaped(text) for text in row] for row in (self.header, *self.rows)]
        widths = [max(len(row[i]) for row in cleaned) for i in range(len(self.header))]
        lines = [
            "| " + " | ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) + " |"
            for row in cleaned
        ]
        lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """As RFC 4180 has it, with plain line ends."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows((self.header, *self.rows))
        return out.getvalue()


def number(value: float, digits: int = 4) -> str:
    """With so many decimals; a loss that diverged says so, what is unknown is a dash."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "diverged" if value > 0 else "-diverged"
    return f"{value:.{digits}f}" if abs(value) < 1e4 else f"{value:.3g}"


def mean_and_spread(of: Interval) -> str:
    """`2.2770 ± 0.0900`: of the seeds, not of their mean."""
    return number(of.mean) + ("" if math.isnan(of.sd) else f" ± {number(of.sd)}")


def bounds(of: Interval, digits: int = 4) -> str:
    """`2.05 to 2.50`; a dash where the seeds give none."""
    if not of.is_known or (math.isinf(of.low) and math.isinf(of.high)):
        return "diverged" if of.low == of.high == math.inf else "-"
    return f"{_side(of.low, digits)} to {_side(of.high, digits)}"


def with_bounds(of: Interval) -> str:
    """`0.0429 (0.0021 to 0.0837)`; the mean alone where there is no interval."""
    said = bounds(of)
    return number(of.mean) + ("" if said in ("-", "diverged") else f" ({said})")


def _side(value: float, digits: int) -> str:
    return f"{value:+g}" if math.isinf(value) else number(value, digits)


def size(num_bytes: float) -> str:
    """In the unit that leaves it below a thousand."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} TB"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
