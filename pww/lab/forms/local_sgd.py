"""Form 1: the stationary noise of local SGD under an outer heavy ball."""

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, within
from pww.lab.forms.mode import contraction, inner_variance, stationary

MOST_MOMENTUM = 1.0 - 1e-9
"""At 1 nothing is ever forgotten: no stationary state, and no number either."""


def local_sgd_variance(
    curvature: npt.ArrayLike,
    *,
    lr: float,
    inner_steps: int,
    workers: int,
    noise: float = 1.0,
    outer_lr: float = 1.0,
    momentum: float = 0.0,
) -> FloatArray:
    """`Var = alpha V (1+beta) / [(1-beta) s (2 (1+beta) - alpha s)]` of each mode, `V = V_w / M`.

    The outer step is `v = beta v + g`, `x = x - alpha v`, with `g = s x + n` the mean delta and
    `n` of variance V. It is the stationary second moment of an AR(2) process. At alpha = 1 and
    beta = 0 it is `eta^2 sigma^2 / ((1 - q^2) M)` whatever H: an outer average neither adds to
    nor takes from the floor of plain SGD on M times the batch.

    Args:
        curvature: `a` of each mode.
        lr: eta, the inner learning rate.
        inner_steps: H.
        workers: M.
        noise: sigma of a worker's gradient.
        outer_lr: alpha.
        momentum: beta.

    Returns:
        Variance of each mode in parameter^2; inf where unstable (`alpha s >= 2 (1 + beta)`, or
        a mode that a phase does not contract).

    Source: Lyapunov equation of the heavy ball on a quadratic, with a phase's s and V_w in the
    place of a step's.
    """
    above(0.0, outer_lr=outer_lr)
    within(0.0, MOST_MOMENTUM, momentum=momentum)
    within(1.0, np.inf, workers=workers)
    s = contraction(curvature, lr=lr, inner_steps=inner_steps)
    shared = inner_variance(curvature, lr=lr, noise=noise, inner_steps=inner_steps) / workers
    margin = (1.0 - momentum) * s * (2.0 * (1.0 + momentum) - outer_lr * s)
    return stationary(outer_lr * shared * (1.0 + momentum), margin)


def stable_outer_lr(contraction: float, *, momentum: float = 0.0) -> float:
    """The outer learning rate below which a mode is stable: `2 (1 + beta) / s`."""
    above(0.0, contraction=contraction)
    within(0.0, MOST_MOMENTUM, momentum=momentum)
    return 2.0 * (1.0 + momentum) / contraction
