"""The figures of a study: losses with intervals, curves, loss against bytes, axes and rates."""

import math
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pww.lab.cells import SHORT, text_of
from pww.lab.report.cells import Cell, axes, shown
from pww.lab.report.interval import Interval
from pww.lab.report.style import GREY, drawn, is_wide, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 42
"""Characters of a label before it goes on below."""
MAX_LINES = 14
"""More lines than these nobody tells apart; the best are drawn, and the title says so."""


Drawing: TypeAlias = Callable[[Path], None]
"""Draws itself into a folder."""


def figures(name: str, cells: Sequence[Cell], against: Cell | None) -> dict[str, Drawing]:
    """All that the runs give to draw, by the name of its files, in the order of a report."""
    rows = sorted(shown(cells), key=lambda cell: (math.isnan(cell.loss.mean), cell.loss.mean))
    found: dict[str, Drawing] = {}
    if rows:
        found["loss"] = partial(_losses, name=name, rows=rows, against=against)
    if any(len(run.evals) > 1 for cell in rows for run in cell.runs):
        found["curves"] = partial(_curves, name=name, rows=rows)
    if len({cell.runs[0].result.bytes["payload"] for cell in rows}) > 1:
        found["bytes"] = partial(_bytes, name=name, rows=rows)
    for key in axes(rows):
        if _is_axis(key, rows):
            short = SHORT.get(key, key)
            found[f"axis-{short}"] = partial(_axis, name=name, rows=rows, key=key, short=short)
    tried = [c for c in cells if sum((c.id, c.task) == (o.id, o.task) for o in cells) > 1]
    if tried:
        found["rates"] = partial(_rates, name=name, tried=tried)
    return found


def _losses(folder: Path, *, name: str, rows: Sequence[Cell], against: Cell | None) -> None:
    with drawn(folder, "loss", rows=len(rows)) as ax:
        for number, cell in enumerate(rows):
            _dot(ax, cell.loss, number)
            for value in cell.by_seed.values():
                if math.isfinite(value):
                    ax.plot(value, number, "|", color=GREY, markersize=9)
        if against is not None and math.isfinite(against.loss.mean):
            ax.axvline(against.loss.mean, color=GREY, linestyle="--", linewidth=1)
        ax.set_yticks(range(len(rows)), [_label(cell) for cell in rows], fontsize=8)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("held-out loss (bar: 95 % of the mean; ticks: seeds)")
        ax.set_title(f"{name}: final loss by cell")


def _dot(ax: "Axes", of: Interval, number: int) -> None:
    style = look(0)
    if not math.isfinite(of.mean):
        ax.annotate(
            "diverged", (0.99, number), xycoords=("axes fraction", "data"), ha="right",
            va="center", color="#D55E00", fontsize=9,
        )  # fmt: skip
        return
    if math.isfinite(of.low) and math.isfinite(of.high):
        ax.plot([of.low, of.high], [number, number], color=style["color"], linewidth=3, alpha=0.5)
    ax.plot(of.mean, number, marker="o", color=style["color"])


def _curves(folder: Path, *, name: str, rows: Sequence[Cell]) -> None:
    best = rows[:MAX_LINES]
    with drawn(folder, "curves") as ax:
        for number, cell in enumerate(best):
            steps, mean, low, high = _band(cell)
            if len(steps) < 2:
                continue
            style = look(number) | {"marker": ""}
            ax.plot(steps, mean, label=_label(cell), **style)
            ax.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
        ax.set_xlabel("inner steps")
        ax.set_ylabel("held-out loss (band: all seeds)")
        more = f", the best {MAX_LINES} of {len(rows)}" if len(rows) > MAX_LINES else ""
        ax.set_title(f"{name}: loss while training{more}")
        legend(ax, len(best))


def _band(cell: Cell) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps that all seeds evaluated at, with mean, least and most; up to where one diverged."""
    curves = [dict(run.evals) for run in cell.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    kept: list[tuple[int, list[float]]] = []
    for step in steps:
        values = [curve[step] for curve in curves]
        if not all(math.isfinite(value) for value in values):
            break
        kept.append((step, values))
    return (
        [step for step, _ in kept],
        [math.fsum(values) / len(values) for _, values in kept],
        [min(values) for _, values in kept],
        [max(values) for _, values in kept],
    )


def _bytes(folder: Path, *, name: str, rows: Sequence[Cell]) -> None:
    best = rows[:MAX_LINES]
    with drawn(folder, "bytes") as ax:
        sizes = [float(cell.runs[0].result.bytes["payload"]) for cell in best]
        for number, (cell, size) in enumerate(zip(best, sizes, strict=True)):
            if math.isfinite(cell.loss.mean):
                _bar(ax, size, cell.loss, number, _label(cell))
        if is_wide(sizes):
            ax.set_xscale("log")
        ax.set_xlabel("payload bytes that a worker sent in the run")
        ax.set_ylabel("held-out loss")
        ax.set_title(f"{name}: loss against what was sent")
        legend(ax, len(best))


def _bar(ax: "Axes", x: float, of: Interval, number: int, label: str) -> None:
    closed = math.isfinite(of.low) and math.isfinite(of.high)
    error = [[of.mean - of.low], [of.high - of.mean]] if closed else None
    style = look(number) | {"linestyle": ""}
    ax.errorbar([x], [of.mean], yerr=error, capsize=3, label=label, **style)


def _is_axis(key: str, rows: Sequence[Cell]) -> bool:
    """Whether three cells or more have numbers there."""
    return len({_position(cell, key) for cell in rows} - {None}) >= 3


def _position(cell: Cell, key: str) -> float | None:
    try:
        return float(text_of(cell.overrides[key]))
    except (KeyError, ValueError):
        return None


def _axis(folder: Path, *, name: str, rows: Sequence[Cell], key: str, short: str) -> None:
    lines: dict[str, list[tuple[float, Interval]]] = {}
    for cell in rows:
        x = _position(cell, key)
        if x is not None:
            rest = ",".join(
                f"{SHORT.get(k, k)}={text_of(v)}" for k, v in cell.overrides.items() if k != key
            )
            lines.setdefault(rest or "all else as it is", []).append((x, cell.loss))
    with drawn(folder, f"axis-{short}") as ax:
        for number, (label, points) in enumerate(sorted(lines.items())[:MAX_LINES]):
            points.sort(key=lambda point: point[0])
            known = [(x, of) for x, of in points if math.isfinite(of.mean)]
            ax.plot(
                [x for x, _ in known], [of.mean for _, of in known], label=label, **look(number)
            )
            bars = [(x, of) for x, of in known if math.isfinite(of.low) and math.isfinite(of.high)]
            ax.vlines(
                [x for x, _ in bars], [of.low for _, of in bars], [of.high for _, of in bars],
                color=look(number)["color"], alpha=0.5,
            )  # fmt: skip
            for x, of in points:
                if not math.isfinite(of.mean):
                    if known:  # a point that nobody sees, so that the axis goes as far
                        ax.plot(x, known[0][1].mean, marker="")
                    ax.annotate(
                        "diverged", (x, 0.97), xycoords=("data", "axes fraction"), rotation=90,
                        ha="center", va="top", fontsize=8, color=look(number)["color"],
                    )  # fmt: skip
        if is_wide([x for points in lines.values() for x, _ in points]):
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        ax.set_xlabel(key)
        ax.set_ylabel("held-out loss (bar: 95 % of the mean)")
        ax.set_title(f"{name}: loss against {short}")
        legend(ax, len(lines))


def _rates(folder: Path, *, name: str, tried: Sequence[Cell]) -> None:
    names = list(dict.fromkeys(cell.label for cell in tried))[:MAX_LINES]
    with drawn(folder, "rates") as ax:
        for number, one in enumerate(names):
            line = [c for c in tried if c.label == one and math.isfinite(c.loss.mean)]
            ax.plot([c.lr for c in line], [c.loss.mean for c in line], label=one, **look(number))
            for cell in line:
                if cell.tuned:
                    ax.plot(
                        cell.lr, cell.loss.mean, "o", markersize=12, markerfacecolor="none",
                        color=look(number)["color"],
                    )  # fmt: skip
        ax.set_xscale("log")
        ax.set_xlabel("learning rate (ring: the best)")
        ax.set_ylabel("held-out loss, mean of the seeds")
        ax.set_title(f"{name}: each cell at every rate")
        legend(ax, len(names))


def _label(cell: Cell) -> str:
    text = "\n".join(textwrap.wrap(cell.label.replace(",", ", "), LINE))
    return text if cell.tuned or cell.candidate else f"{text} (lr {cell.lr:g})"
