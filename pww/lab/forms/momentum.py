"""Form 3: how fast an outer optimiser forgets a mode, and which momentum suits an H.

H inner steps shrink the spread of what is left to do: a mode's phase removes `s = 1 - q^H`, and
the condition number that the outer optimiser sees falls from kappa to `kappa_H`. So the momentum
that is best at H = 1 is far too much at H = 1024.
"""

from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import above, array, within

Outer = Literal["heavy_ball", "nesterov"]


def outer_condition(condition: float, inner_steps: int) -> float:
    """`kappa_H = 1 / (1 - (1 - 1/kappa)^H)`, with inner steps of `1 / a_max`: `s_max` is 1."""
    within(1.0, np.inf, condition=condition, inner_steps=inner_steps)
    if condition == 1.0:
        return 1.0
    return float(-1.0 / np.expm1(inner_steps * np.log1p(-1.0 / condition)))


def best_momentum(condition: float) -> float:
    """`beta* = ((sqrt kappa - 1) / (sqrt kappa + 1))^2` of a heavy ball; pass `kappa_H`."""
    within(1.0, np.inf, condition=condition)
    root = np.sqrt(condition)
    return float(((root - 1.0) / (root + 1.0)) ** 2)


def best_outer_lr(smallest: float, largest: float) -> float:
    """`alpha* = 4 / (sqrt s_max + sqrt s_min)^2` of a heavy ball, by its extreme contractions."""
    above(0.0, smallest=smallest)
    within(smallest, np.inf, largest=largest)
    return float(4.0 / (np.sqrt(largest) + np.sqrt(smallest)) ** 2)


def best_heavy_ball_rate(condition: float) -> float:
    """`sqrt beta*`: what is left of the worst mode after an outer step, tuned to `kappa_H`."""
    return float(np.sqrt(best_momentum(condition)))


def best_averaging_rate(condition: float) -> float:
    """`(kappa_H - 1) / (kappa_H + 1)`: the same without momentum, `alpha = 2/(s_max + s_min)`."""
    within(1.0, np.inf, condition=condition)
    return (condition - 1.0) / (condition + 1.0)


def outer_rate(
    contraction: npt.ArrayLike, *, outer: Outer, outer_lr: float, momentum: float
) -> float:
    """What is left after an outer step of the slowest of these modes; 1 or more: it diverges.

    The spectral radius of one outer step on (x, v): `[[1 - alpha s, -alpha beta], [s, beta]]` for
    a heavy ball, `[[1 - alpha s (1 + beta), -alpha beta^2], [s, beta]]` for Nesterov.

    Args:
        contraction: s of each mode.
        outer: Which of the two; momentum 0 makes both plain averaging.
        outer_lr: alpha.
        momentum: beta.

    Source: Polyak 1964; Nesterov as `x = x - alpha (g + beta v)`, the form of DiLoCo
    (arXiv 2311.08105) and of `torch.optim.SGD`.
    """
    within(0.0, np.inf, contraction=contraction)
    above(0.0, outer_lr=outer_lr)
    within(0.0, 1.0, momentum=momentum)
    s = array(contraction).ravel()
    step = np.empty((s.size, 2, 2))
    step[:, 1, 0], step[:, 1, 1] = s, momentum
    match outer:
        case "heavy_ball":
            step[:, 0, 0], step[:, 0, 1] = 1.0 - outer_lr * s, -outer_lr * momentum
        case "nesterov":
            step[:, 0, 0] = 1.0 - outer_lr * s * (1.0 + momentum)
            step[:, 0, 1] = -outer_lr * momentum**2
        case _:
            assert_never(outer)
    return float(np.abs(np.linalg.eigvals(step)).max())
