"""Form 8: an outer step that arrives tau rounds late, `x_(t+1) = x_t - c x_(t-tau) + e`.

And one that arrives n inner steps late, with what workers moved meanwhile kept.
"""

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, array, within
from pww.lab.forms.mode import inner_variance, stationary


def delay_limit(delay: int) -> float:
    """`c < 2 sin(pi / (4 tau + 2))`, the outer steps `c = alpha s` that are stable.

    Source: Levin and May 1976, the delay-difference equation.
    """
    within(0, np.inf, delay=delay)
    return float(2.0 * np.sin(np.pi / (4.0 * delay + 2.0)))


def best_delayed_step(delay: int) -> float:
    """`c* = tau^tau / (tau+1)^(tau+1)`, where the largest two roots meet; 1 without a delay."""
    within(0, np.inf, delay=delay)
    return float((delay / (delay + 1.0)) ** delay / (delay + 1.0))


def best_delayed_rate(delay: int) -> float:
    """`tau / (tau + 1)`: what is left after a round at `c*`."""
    within(0, np.inf, delay=delay)
    return delay / (delay + 1.0)


def delayed_rate(step: float, *, delay: int) -> float:
    """What is left after a round at any c: the largest root of `z^(tau+1) - z^tau + c`."""
    above(0.0, step=step)
    within(0, np.inf, delay=delay)
    coefficients = np.zeros(delay + 2)
    coefficients[0] = 1.0
    coefficients[1] -= 1.0
    coefficients[-1] += step
    return float(np.abs(np.roots(coefficients)).max())


def overlapped_variance(
    curvature: npt.ArrayLike,
    *,
    lr: float,
    inner_steps: int,
    overlap: int,
    workers: int,
    noise: float = 1.0,
    outer_lr: float = 1.0,
) -> FloatArray:
    """The stationary noise of theta when its outer step comes n inner steps late.

    With `r = q^(H-n)`, `p = q^n` and y the workers' mean, a round is
    `theta' = theta - alpha (theta - y)`, `y' = r (theta' + (p - 1) y) + e`, so that theta follows

        theta'' = a theta' + b theta + alpha e,
        a = 1 - alpha + alpha r - r (1 - p),  b = r (1 - p) (1 - alpha)

    `Var = alpha^2 V (1 - b) / [(1 + b) ((1 - b)^2 - a^2)]`. With n = 0 that is form 1 without
    momentum; at alpha = 1, where b = 0 and a = q^H, it is the same for every n: averaging pays
    nothing for the overlap.

    Args:
        curvature: a of each mode.
        lr: eta.
        inner_steps: H.
        overlap: n, below H.
        workers: M.
        noise: sigma of a worker's gradient.
        outer_lr: alpha of a plain outer step.

    Returns:
        Variance of each mode in parameter^2; inf where the recursion is not stable.
    """
    above(0.0, outer_lr=outer_lr, lr=lr, curvature=curvature)
    within(1, np.inf, workers=workers, inner_steps=inner_steps)
    within(0, inner_steps - 1, overlap=overlap)
    q = 1.0 - lr * array(curvature)
    r, p = q ** (inner_steps - overlap), q**overlap
    first = 1.0 - outer_lr + outer_lr * r - r * (1.0 - p)
    second = r * (1.0 - p) * (1.0 - outer_lr)
    own = inner_variance(curvature, lr=lr, noise=noise, inner_steps=inner_steps)
    gain = outer_lr**2 * own / workers * (1.0 - second)
    margin = (1.0 + second) * ((1.0 - second) ** 2 - first**2)
    return stationary(gain, np.where(np.abs(second) < 1.0, margin, 0.0))
