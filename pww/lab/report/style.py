"""How every figure looks: colours that the colour-blind can tell apart, and marks beside them.

Figures are drawn without pyplot, so there is no window and no state between them. The same runs
give the same bytes: no date, and ids from a fixed salt.
"""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pww.folder import write_durably

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Source: Okabe and Ito, Color Universal Design (2008), without yellow, too light for a line
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
GREY = "#666666"
DOTS_PER_INCH = 150


def look(number: int) -> dict[str, Any]:
    """Colour, mark and dash of the line of that number: no two of the first 28 are the same."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKS[number % len(MARKS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def wants_matplotlib() -> str:
    """Why nothing can be drawn; "" where it can."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "figures need matplotlib: pip install 'pww[lab]'"
    return ""


@contextmanager
def drawn(folder: Path, name: str, *, rows: int = 0) -> "Iterator[Axes]":
    """Axes to draw in; afterwards `name.svg` and `name.png` are in the folder.

    `rows`: how many lines of text its y axis will have, where it has them.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(
        {
            "svg.hashsalt": "pww",
            "font.size": 10,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "lines.markersize": 5.5,
        }
    ):
        figure = Figure(figsize=(7.2, max(3.6, 1.2 + 0.32 * rows)), layout="constrained")
        yield figure.add_subplot()
        _save(figure, folder, name)


def legend(axes: "Axes", entries: int) -> None:
    """Beside the drawing, so that it hides nothing; none for one line."""
    if entries > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def is_wide(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows these better."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and min(known) > 0 and max(known) / min(known) >= 8


def _save(figure: "Figure", folder: Path, name: str) -> None:
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
        write_durably(folder / f"{name}.{kind}", out.getvalue())
