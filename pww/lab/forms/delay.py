"""Form 8: an outer step that arrives tau rounds late, `x_(t+1) = x_t - c x_(t-tau) + e`."""

import numpy as np

from pww.lab.forms.domain import above, within


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
