"""The mean of a few seeds and the interval that it is known to: Student's t, 95 %.

A run that diverged has the loss infinity, and what it is part of reaches to infinity. One seed says
nothing about its own spread: the interval is then open on both sides.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, the spread of the seeds (`sd`), the mean's interval, and of how many seeds."""

    mean: float
    sd: float
    low: float
    high: float
    num: int

    @property
    def is_known(self) -> bool:
        """Whether it is closed, or rightly at infinity."""
        return not (math.isnan(self.low) or math.isnan(self.high)) and self.num > 0


def interval(values: Sequence[float]) -> Interval:
    """Of independent values, one a seed; nan where two infinities were compared."""
    num = len(values)
    if num == 0 or any(math.isnan(value) for value in values):
        return Interval(math.nan, math.nan, math.nan, math.nan, num)
    if any(math.isinf(value) for value in values):
        low, high = min(values), max(values)
        return Interval(
            high if high == math.inf else low, math.nan, low if num > 1 else -math.inf,
            high if num > 1 else math.inf, num,
        )  # fmt: skip
    mean = math.fsum(values) / num
    if num == 1:
        return Interval(mean, math.nan, -math.inf, math.inf, num)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (num - 1))
    half = t_quantile(num - 1) * sd / math.sqrt(num)
    return Interval(mean, sd, mean - half, mean + half, num)


def mapped(of: Interval, through: Callable[[float], float]) -> Interval:
    """The interval of an increasing function of it, as of the exponential of a mean logarithm."""
    return Interval(through(of.mean), math.nan, through(of.low), through(of.high), of.num)


def t_quantile(freedom: int) -> float:
    """Where the middle 95 % of Student's t with that many degrees of freedom end."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + LEVEL / 2))
