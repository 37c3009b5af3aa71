"""Form 10: workers of unequal steps, and workers that are not all there."""

import math

import numpy as np
import numpy.typing as npt

from pww.lab.forms.compressed import omega_of, unbiased_variance
from pww.lab.forms.domain import FloatArray, above, array, share, within
from pww.lab.forms.mode import stationary


def unequal_variance(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    weights: npt.ArrayLike,
    outer_lr: float = 1.0,
) -> FloatArray:
    """`Var = alpha^2 sum w_i^2 V_i / (r (2 - r))` with `r = alpha sum w_i s_i`, of each mode.

    Args:
        contraction: `s_i`; the first axis is the worker, others are modes.
        inner_variance: `V_i` of the same shape, in parameter^2.
        weights: `w_i` of the merge, one a worker; not normalised here.
        outer_lr: alpha of a plain outer step.

    Returns:
        Variance of each mode in parameter^2; inf where `r >= 2`.

    Source: AR(1) `x = (1 - r) x - alpha sum w_i n_i`.
    """
    above(0.0, outer_lr=outer_lr)
    within(0.0, np.inf, weights=weights)
    w = array(weights)
    removed = outer_lr * np.tensordot(w, array(contraction), axes=1)
    added = outer_lr**2 * np.tensordot(w**2, array(inner_variance), axes=1)
    return stationary(added, removed * (2.0 - removed))


def divided_by_expected(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    workers: int,
    present: float,
    outer_lr: float = 1.0,
) -> FloatArray:
    """Partial participation, the sum of those present divided by `N p`: form 4, `1/p - 1`.

    Right on average, but a round in which many are there steps too far, and one with few too
    short: the signal itself becomes noise.
    """
    return unbiased_variance(
        contraction, inner_variance, workers=workers, omega=omega_of(present), outer_lr=outer_lr
    )


def divided_by_present(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    workers: int,
    present: float,
    outer_lr: float = 1.0,
) -> FloatArray:
    """Partial participation, divided by the number k present: `alpha V_w E[1/k] / (s (2-alpha s))`.

    k is binomial (N, p); a round with nobody is none, so the mean is over k of 1 or more. It is as
    stable as full participation and the better for a large outer step; for a small one
    `divided_by_expected` is less noisy, since `E[1/k]` is above `1 / (N p)` where few are there.

    Args:
        contraction: s of each mode.
        inner_variance: V_w of each mode, in parameter^2.
        workers: N.
        present: p, the chance that a worker takes part in a round.
        outer_lr: alpha of a plain outer step.

    Returns:
        Variance of each mode in parameter^2; inf where `alpha s >= 2`.
    """
    above(0.0, outer_lr=outer_lr)
    s = array(contraction)
    added = outer_lr * array(inner_variance) * mean_inverse_present(workers, present)
    return stationary(added, s * (2.0 - outer_lr * s))


def mean_inverse_present(workers: int, present: float) -> float:
    """`E[1/k | k >= 1]` of a binomial k of N and p."""
    within(1, np.inf, workers=workers)
    share(present=present)
    if present == 1.0:
        return 1.0 / workers
    k = np.arange(1, workers + 1)
    ln_ways = np.array(
        [math.lgamma(workers + 1) - math.lgamma(i + 1) - math.lgamma(workers - i + 1) for i in k]
    )
    chance = np.exp(ln_ways + k * math.log(present) + (workers - k) * math.log1p(-present))
    return float(np.sum(chance / k) / np.sum(chance))
