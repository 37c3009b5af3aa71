"""The study of `vision_study.py` as a table, sentences made from its numbers, and a figure."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Protocol

NAMES = {
    "ddp": "DDP",
    "fedavg_h25": "FedAvg, H = 25",
    "fedavg_h100": "FedAvg, H = 100",
    "nesterov_h25": "Nesterov, H = 25",
    "nesterov_h100": "Nesterov, H = 100",
}
STORED, AGAIN = "#0072B2", "#E69F00"  # of the palette of Okabe and Ito, which all eyes tell apart


class Run(Protocol):
    """What is read of a result."""

    accuracy: float
    recalibrated: float
    agreement: float
    images: int
    measured: int


Found = Mapping[tuple[str, str], Sequence[Run]]


def report(found: Found, *, plot: Path | None) -> str:
    """Markdown; draws `plot` beside it if it is given."""
    parts = []
    for data in dict.fromkeys(data for data, _ in found):
        arms = {arm: runs for (one, arm), runs in found.items() if one == data}
        parts += [_title(data, arms), "", *_table(arms), "", *_words(arms), ""]
    if plot is not None:
        _draw(found, plot)
        parts.append(f"Figure: {plot}")
    return "\n".join(parts)


def _title(data: str, arms: Mapping[str, Sequence[Run]]) -> str:
    run = next(iter(arms.values()))[0]
    seeds = min(len(runs) for runs in arms.values())
    return (
        f"### {data}: {run.images:,} images trained on, accuracy in % on {run.measured:,} that "
        f"are held out, mean and standard deviation of {seeds} seed(s)"
    )


def _table(arms: Mapping[str, Sequence[Run]]) -> list[str]:
    rows = [
        "| | running statistics | `recalibrate_bn` | it gains | agreement |",
        "|---|---|---|---|---|",
    ]
    for arm, runs in arms.items():
        stored, again = [r.accuracy for r in runs], [r.recalibrated for r in runs]
        gain = [b - a for a, b in zip(stored, again, strict=True)]
        travelled = f"{mean(r.agreement for r in runs):.2f}" if arm != "ddp" else "-"
        rows.append(
            f"| {NAMES[arm]} | {_of(stored)} | {_of(again)} | {_of(gain, sign=True)} | "
            f"{travelled} |"
        )
    return rows


def _words(arms: Mapping[str, Sequence[Run]]) -> list[str]:
    """Sentences that follow from the numbers: differences to DDP of the same seed."""
    said = []
    for arm, runs in arms.items():
        if arm == "ddp":
            continue
        plain = [r.accuracy for r in arms["ddp"]]
        stored = [r.accuracy - base for r, base in zip(runs, plain, strict=True)]
        again = [r.recalibrated - base for r, base in zip(runs, plain, strict=True)]
        said.append(
            f"- {NAMES[arm]} {_against(stored)}; with `recalibrate_bn` it {_against(again)}"
            f"{_closed(stored, again)}."
        )
    return said


def _against(gaps: Sequence[float]) -> str:
    points = f"{abs(100 * mean(gaps)):.2f} points"
    if not _clear(gaps):
        return f"is {points} {'below' if mean(gaps) < 0 else 'above'} DDP, within its noise"
    return f"is {points} {'below' if mean(gaps) < 0 else 'above'} DDP"


def _closed(stored: Sequence[float], again: Sequence[float]) -> str:
    """How much of a gap that is clearly there recalibration closes."""
    if mean(stored) >= 0 or not _clear(stored):
        return ""
    share = 1.0 - mean(again) / mean(stored)
    if share < 0:
        return ", which makes it larger"
    return f", which closes {min(share, 1.0):.0%} of the gap"


def _clear(gaps: Sequence[float]) -> bool:
    """Whether a mean lies beyond two standard errors; one seed says nothing about that."""
    if len(gaps) < 2:
        return True
    return abs(mean(gaps)) > 2 * stdev(gaps) / math.sqrt(len(gaps))


def _of(values: Sequence[float], *, sign: bool = False) -> str:
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):{'+' if sign else ''}.2f}{spread}"


def _draw(found: Found, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    sets = list(dict.fromkeys(data for data, _ in found))
    figure, panels = plt.subplots(
        1, len(sets), figsize=(5 * len(sets), 4), squeeze=False, layout="constrained"
    )
    for panel, data in zip(panels[0], sets, strict=True):
        arms = [arm for one, arm in found if one == data]
        for row, arm in enumerate(arms):
            runs = found[data, arm]
            for name, color, mark, by in (
                ("accuracy", STORED, "o", 0.12), ("recalibrated", AGAIN, "D", -0.12),
            ):  # fmt: skip
                values = [100 * getattr(run, name) for run in runs]
                at = [row + by] * len(values)
                panel.plot(values, at, mark, color=color, alpha=0.6, markersize=5)
                panel.plot(mean(values), row + by, "|", color=color, markersize=18, mew=2.5)
        panel.set_yticks(range(len(arms)), [NAMES[arm] for arm in arms])
        panel.invert_yaxis()
        panel.set_xlabel("accuracy on held-out images, %")
        panel.set_title(data)
        panel.grid(axis="x", alpha=0.3)
    marks = [
        plt.Line2D([], [], color=color, marker=mark, linestyle="", label=name)
        for name, color, mark in (
            ("running statistics", STORED, "o"), ("recalibrate_bn", AGAIN, "D"),
        )
    ]  # fmt: skip
    figure.legend(handles=marks, loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)
