"""One mode of a quadratic under H steps of noisy SGD: what a phase does to it.

Every closed form of the lab is about the loss `sum of (a/2) x^2` over independent modes. A worker
steps `x = x - eta (a x + sigma xi)` with standard normal `xi`, so that after H steps
`x_H = q^H x_0 + noise`, and its delta is `x_0 - x_H = s x_0 - noise`. Two numbers of each mode
thus say all of a phase: the share `s` that it removes and the variance `V_w` that it adds.

Units: `x` in units of the parameter, `a` in loss / parameter^2, `sigma` in loss / parameter,
`eta` in parameter^2 / loss. Variances are in parameter^2.
"""

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, array, within


def decay(curvature: npt.ArrayLike, *, lr: float) -> FloatArray:
    """`q = 1 - eta a`, the factor of one inner step."""
    within(0.0, np.inf, curvature=curvature)
    above(0.0, lr=lr)
    return 1.0 - lr * array(curvature)


def contraction(
    curvature: npt.ArrayLike, *, lr: float, inner_steps: npt.ArrayLike = 1
) -> FloatArray:
    """`s = 1 - q^H`, the share of a mode's distance that one phase removes.

    Where `eta a` is small the power is taken by its logarithm, since `1 - q^H` would lose its
    digits.
    """
    within(1.0, np.inf, inner_steps=inner_steps)
    q, steps = np.broadcast_arrays(decay(curvature, lr=lr), array(inner_steps))
    slow = q > 0.5
    taken = lr * np.broadcast_to(array(curvature), q.shape)
    by_logarithm = -np.expm1(steps * np.log1p(-np.where(slow, taken, 0.0)))
    return array(np.where(slow, by_logarithm, 1.0 - np.power(q, steps)))


def inner_variance(
    curvature: npt.ArrayLike, *, lr: float, noise: float = 1.0, inner_steps: npt.ArrayLike = 1
) -> FloatArray:
    """`V_w = eta^2 sigma^2 (1 - q^(2H)) / (1 - q^2)`, a worker's noise after H steps.

    A mode without curvature (q = 1) collects every step's noise: `H eta^2 sigma^2`.
    """
    within(1.0, np.inf, inner_steps=inner_steps)
    within(0.0, np.inf, noise=noise)
    q, steps = np.broadcast_arrays(decay(curvature, lr=lr), array(inner_steps))
    square = q * q
    neutral = square == 1.0
    below = np.where(neutral, 1.0, 1.0 - square)
    terms: FloatArray = np.where(neutral, steps, (1.0 - np.power(square, steps)) / below)
    return array((lr * noise) ** 2 * terms)


def loss(curvature: npt.ArrayLike, variance: npt.ArrayLike) -> float:
    """The stationary loss `sum of (a/2) Var`; inf where a mode has no stationary variance."""
    return float(np.sum(array(curvature) / 2.0 * array(variance)))


def stationary(gain: npt.ArrayLike, margin: npt.ArrayLike) -> FloatArray:
    """`gain / margin` where there is a margin to instability, inf where there is none."""
    above_zero = array(margin) > 0.0
    return np.where(above_zero, array(gain) / np.where(above_zero, margin, 1.0), np.inf)
