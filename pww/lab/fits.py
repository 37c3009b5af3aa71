"""The composition rule of compression and sync interval, and its rival, fitted to measured cells.

    rule    loss = L0 + a omega (H/16)^b                    three constants
    rival   loss = L0 + a omega^p + c (H/16)^q              five: an additive power law

The rule says that what a compressor costs is proportional to its variance factor omega and that the
interval only scales that cost. Both are linear but for their exponents, so that scipy searches
these alone (variable projection), from the best of a grid; linear least squares gives the rest.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt

from pww.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
Law = Literal["rule", "rival"]

H_UNIT = 16.0
"""The interval at which `a` is the loss per omega."""
STEEPEST = 4.0
"""Exponents are searched up to this size; a grid of the lab cannot tell steeper ones apart."""
_NUM_CONSTANTS: dict[Law, int] = {"rule": 3, "rival": 5}
_EXPONENTS: dict[Law, tuple[str, ...]] = {"rule": ("b",), "rival": ("p", "q")}
_MOST_DRAWS = 1000
_GRID: dict[Law, tuple[FloatArray, ...]] = {
    "rule": (np.linspace(-STEEPEST, STEEPEST, 17),),
    "rival": (np.linspace(0.25, 3.25, 7), np.linspace(-1.75, 2.75, 10)),
}
"""Of each exponent; scipy starts at the best point. No q is 0, where its term is a constant."""
_BOUNDS: dict[Law, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "rule": ((-STEEPEST,), (STEEPEST,)),
    "rival": ((0.05, -STEEPEST), (STEEPEST, STEEPEST)),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured run: several of the same omega and H are repetitions (seeds)."""

    omega: float
    """Variance factor of the compressor; 0 for dense."""
    inner_steps: int
    loss: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of a law and how well it says the cells that it was fitted to."""

    law: Law
    constants: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """By resampling, of each constant; empty if not asked for."""
    error: float
    """Mean of |predicted - measured| / measured over the fitted cells."""

    def predict(self, omega: float, inner_steps: int) -> float:
        """The loss that the law says for a cell."""
        exponents = np.array([self.constants[name] for name in _EXPONENTS[self.law]])
        columns = _columns(self.law, exponents, np.array([omega]), np.array([inner_steps / H_UNIT]))
        linear = [v for name, v in self.constants.items() if name not in _EXPONENTS[self.law]]
        return float((columns @ np.array(linear))[0])


def fit(
    cells: Sequence[Cell], *, law: Law = "rule", resamples: int = 0, seed: int = 0,
    confidence: float = 0.95,
) -> Fit:  # fmt: skip
    """Least squares, each loss counting alike; intervals by resampling of cells.

    A resample draws cells with replacement, all repetitions of a cell together, since they share
    what the law does not say about it. One that determines no fit is drawn anew.

    Args:
        cells: What was measured.
        law: Which of the two.
        resamples: How many, for the intervals; 0 for none.
        seed: Of the resampling.
        confidence: Of the intervals, by percentiles.

    Raises:
        ConfigError: the cells determine no fit (too few, one H, one omega, or a loss that is
            none), or scipy is not installed.
    """
    if not 0.0 < confidence < 1.0 or resamples < 0:
        raise ConfigError(
            [f"resamples {resamples} at confidence {confidence:g}; take 0 or more, between 0 and 1"]
        )
    faults = refusals(cells, law=law)
    if faults:
        raise ConfigError(faults)
    constants = _fitted(cells, law)
    picked = _resampled(cells, law, resamples, np.random.default_rng(seed))
    intervals = {
        name: _interval([one[name] for one in picked], confidence) for name in constants if picked
    }
    found = Fit(law, constants, intervals, 0.0)
    return replace(found, error=mean_error(found, cells))


def refusals(cells: Sequence[Cell], *, law: Law = "rule") -> list[str]:
    """Why these cells determine no fit, a sentence each; none if they do."""
    faults = [
        f"loss of the cell omega {c.omega:g}, H {c.inner_steps} is {c.loss:g}; "
        "a fit wants finite losses above 0: leave diverged runs out"
        for c in cells
        if not (np.isfinite(c.loss) and c.loss > 0.0)
    ]
    faults += [
        f"a cell has omega {c.omega:g} and H {c.inner_steps}; omega is 0 or more and H 1 or more"
        for c in cells
        if not (np.isfinite(c.omega) and c.omega >= 0.0 and c.inner_steps >= 1)
    ]
    places = {(c.omega, c.inner_steps) for c in cells}
    needed = _NUM_CONSTANTS[law]
    if len(places) < needed:
        faults.append(
            f"{len(places)} different cells for {needed} constants ({law}); measure "
            f"{needed - len(places)} more"
        )
    return faults + _too_alike(places, law)


def num_constants(law: Law) -> int:
    """How many constants a law has, and so how many different cells it needs at least."""
    return _NUM_CONSTANTS[law]


def mean_error(fitted: Fit, cells: Sequence[Cell]) -> float:
    """Mean of |predicted - measured| / measured over these cells."""
    errors = [abs(fitted.predict(c.omega, c.inner_steps) - c.loss) / c.loss for c in cells]
    return float(np.mean(errors))


def _too_alike(places: set[tuple[float, int]], law: Law) -> list[str]:
    """Where omega or H takes too few values; an exponent of the rival's wants three of each."""
    needed = 2 if law == "rule" else 3
    omegas = sorted({omega for omega, _ in places})
    if len(omegas) < needed:
        told = ", ".join(f"{omega:g}" for omega in omegas)
        return [
            f"the cells have omega = {told} only and the {law} needs {needed} values; what a "
            "compressor costs cannot be fitted: measure another codec"
        ]
    # dense cells say nothing of b: omega is 0 in the only term that has H
    compressed = law == "rule"
    intervals = sorted({h for omega, h in places if omega > 0.0 or not compressed})
    if len(intervals) < needed:
        which = "all cells with a compressor" if compressed else "the cells"
        return [
            f"{which} share H = {', '.join(map(str, intervals))} and the {law} needs {needed} "
            "values; how the loss goes with H cannot be fitted: measure another H"
        ]
    return []


def _columns(law: Law, exponents: FloatArray, omega: FloatArray, h: FloatArray) -> FloatArray:
    """What the linear constants multiply, a column each."""
    one = np.ones_like(omega)
    match law:
        case "rule":
            return np.stack([one, omega * h ** exponents[0]], axis=1)
        case "rival":
            return np.stack([one, omega ** exponents[0], h ** exponents[1]], axis=1)
        case _:
            assert_never(law)


def _fitted(cells: Sequence[Cell], law: Law) -> dict[str, float]:
    """From the best of a grid; exponents by scipy, the rest by linear least squares within.

    scipy is imported here, so that a machine without it has the rest of the lab.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as fault:
        raise ConfigError(
            [f"a fit needs scipy, which cannot be imported ({fault}); pip install 'pww[lab]'"]
        ) from None
    omega = np.array([c.omega for c in cells])
    h = np.array([c.inner_steps for c in cells]) / H_UNIT
    loss = np.array([c.loss for c in cells])

    def linear(exponents: FloatArray) -> tuple[FloatArray, FloatArray]:
        columns = _columns(law, exponents, omega, h)
        size = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        constants = np.linalg.lstsq(columns / size, loss, rcond=None)[0] / size
        return constants, columns @ constants - loss

    def cost(exponents: FloatArray) -> float:
        return float((linear(exponents)[1] ** 2).sum())

    start = min((np.array(point) for point in itertools.product(*_GRID[law])), key=cost)
    best = least_squares(lambda e: linear(e)[1], start, bounds=_BOUNDS[law]).x
    solved, _ = linear(best)
    named = {"L0": solved[0], "a": solved[1], _EXPONENTS[law][0]: best[0]}
    if law == "rival":
        named |= {"c": solved[2], "q": best[1]}
    return {name: float(value) for name, value in named.items()}


def grouped(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The repetitions of each different cell, in the order of their first."""
    groups: dict[tuple[float, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.omega, cell.inner_steps), []).append(cell)
    return list(groups.values())


def drawn(draw: Callable[[], list[list[Cell]]], *, law: Law) -> list[list[Cell]]:
    """The first of these draws of groups whose cells determine a fit of `law`.

    Raises:
        ConfigError: none of a thousand did.
    """
    for _ in range(_MOST_DRAWS):
        groups = draw()
        if not refusals([cell for group in groups for cell in group], law=law):
            return groups
    raise ConfigError(
        [
            f"none of {_MOST_DRAWS} random draws of cells determines a fit ({law}); "
            "measure more cells"
        ]
    )


def _resampled(
    cells: Sequence[Cell], law: Law, resamples: int, generator: np.random.Generator
) -> list[dict[str, float]]:
    groups = grouped(cells)

    def draw() -> list[list[Cell]]:
        return [groups[i] for i in generator.integers(len(groups), size=len(groups))]

    picks = (drawn(draw, law=law) for _ in range(resamples))
    return [_fitted([cell for group in picked for cell in group], law) for picked in picks]


def _interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(values, [tail, 100.0 - tail])
    return float(low), float(high)
