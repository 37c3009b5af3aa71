"""What the closed forms take: arrays of doubles, and one sentence for a number out of its range."""

import math

import numpy as np
import numpy.typing as npt

from pww.errors import ConfigError

FloatArray = npt.NDArray[np.float64]


def array(values: npt.ArrayLike) -> FloatArray:
    """`values` as doubles; a lone number becomes an array without axes."""
    return np.asarray(values, dtype=np.float64)


def above(floor: float, **numbers: npt.ArrayLike) -> None:
    """Every one of these is a finite number above `floor`.

    Raises:
        ConfigError: which is not, and the rule.
    """
    _check(numbers, floor, math.inf, with_low=False, rule=f"above {floor:g}")


def within(low: float, high: float, **numbers: npt.ArrayLike) -> None:
    """Every one of these lies between `low` and `high`, both included where finite.

    Raises:
        ConfigError: which does not, and the rule.
    """
    rule = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
    _check(numbers, low, high, with_low=True, rule=rule)


def share(**numbers: npt.ArrayLike) -> None:
    """Every one of these is a share: above 0, and 1 at most.

    Raises:
        ConfigError: which is not, and the rule.
    """
    _check(numbers, 0.0, 1.0, with_low=False, rule="above 0 and at most 1")


def _check(
    numbers: dict[str, npt.ArrayLike], low: float, high: float, *, with_low: bool, rule: str
) -> None:
    faults = []
    for name, given in numbers.items():
        values = array(given).ravel()
        fine = np.isfinite(values) & (values >= low if with_low else values > low)
        fine &= values <= high
        if not fine.all():
            worst = values[~fine][0]
            faults.append(f"{name} is {worst:g}; it must be a number {rule}: change it")
    if faults:
        raise ConfigError(faults)
