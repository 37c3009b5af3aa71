"""Form 9: what a robust merge costs without attackers, and what attackers do to it.

The unit is a worker's noise: `b` is the merge of N standard normals. A merge that moves with its
arguments' common shift leaves a mode's contraction alone, so its noise is all that matters.
"""

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, array, within
from pww.lab.forms.mode import stationary

_NODES = 240
"""Of each Gauss-Legendre rule; 120 change the seventh digit at N = 1000."""
_tail = np.vectorize(lambda x: 0.5 * math.erfc(x / math.sqrt(2.0)), otypes=[float])


def robust_variance(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    noise: float,
    outer_lr: float = 1.0,
) -> FloatArray:
    """`Var = alpha V_w Var(b) / (s (2 - alpha s))` of each mode.

    Args:
        contraction: s of each mode.
        inner_variance: V_w of each mode, in parameter^2.
        noise: `Var(b)` of the merge: `1/N` of the mean, `median_noise(N)` of the median.
        outer_lr: alpha of a plain outer step.

    Returns:
        Variance of each mode in parameter^2; inf where `alpha s >= 2`.

    Source: AR(1) with the merge's noise. Exact for merges by coordinate, and for a lone mode.
    """
    above(0.0, noise=noise, outer_lr=outer_lr)
    s = array(contraction)
    return stationary(outer_lr * array(inner_variance) * noise, s * (2.0 - outer_lr * s))


def median_noise(workers: int) -> float:
    """`Var(b)` of the median of N standard normals; N times it goes from 1 to pi/2.

    For an even N the median is the mean of the middle two (NumPy's), which is less noisy than the
    odd medians around it. PyTorch's `median` takes the lower of the two, which is biased.

    Source: the density of order statistics (David and Nagaraja), integrated numerically.
    """
    within(1, np.inf, workers=workers)
    spread = math.sqrt(math.pi / (2.0 * workers))
    x, weight = _rule(-min(9.0, 12.0 * spread), min(9.0, 12.0 * spread))
    if workers % 2:
        below = (workers - 1) // 2
        ln_ways = math.lgamma(workers + 1) - 2.0 * math.lgamma(below + 1)
        density = np.exp(ln_ways + below * (np.log(_tail(x)) + np.log(_tail(-x)))) * _density(x)
        return float(np.sum(weight * density * x**2))
    below = workers // 2 - 1
    gap, gap_weight = _rule(0.0, min(18.0, 120.0 / workers))
    lower, upper = x[:, None], x[:, None] + gap[None, :]
    middle = 0.5 * (lower + upper)
    ln_ways = math.lgamma(workers + 1) - 2.0 * math.lgamma(below + 1)
    with np.errstate(divide="ignore"):  # no chance at all at the rim: its logarithm is -inf
        ln_rest = np.log(_tail(-lower)) + np.log(_tail(upper)) if below else 0.0
    density = np.exp(ln_ways + below * ln_rest) * _density(lower) * _density(upper)
    return float(np.sum(weight[:, None] * gap_weight[None, :] * density * middle**2))


def median_bias(share: float) -> float:
    """z of `Phi(z) = 1 / (2 (1 - eps))`: how far attackers on one side drag the median, in sigma.

    Inf from a half on, where the median is one of their values (its breakdown). It is the limit
    of many workers; theirs may be anything beyond the honest ones.

    Args:
        share: eps, the share of workers that attack.
    """
    within(0.0, 1.0, share=share)
    return math.inf if share >= 0.5 else NormalDist().inv_cdf(0.5 / (1.0 - share))


def mean_bias(share: float, *, shift: float) -> float:
    """`eps Delta`: how far attackers that send the truth plus Delta move the mean: at will."""
    within(0.0, 1.0, share=share)
    return share * shift


def _rule(low: float, high: float) -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = 0.5 * (high - low)
    return low + half * (nodes + 1.0), half * weights


def _density(x: FloatArray) -> FloatArray:
    return array(np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi))
