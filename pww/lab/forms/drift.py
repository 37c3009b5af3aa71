"""Form 2: where local SGD settles when its workers have different optima, and how to cure it.

With more than one inner step, a worker of large curvature has long arrived while one of small
curvature still walks, so their mean is not the optimum of the mean loss (client drift).
"""

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, array, within
from pww.lab.forms.mode import contraction


def true_optimum(curvature: npt.ArrayLike, optimum: npt.ArrayLike) -> float:
    """`sum a c / sum a`, the least of the mean of `(a_i / 2) (x - c_i)^2` over workers."""
    a = array(curvature)
    return float(np.sum(a * array(optimum)) / np.sum(a))


def fixed_point(
    curvature: npt.ArrayLike,
    optimum: npt.ArrayLike,
    *,
    lr: float,
    inner_steps: npt.ArrayLike,
    weights: npt.ArrayLike = 1.0,
) -> float:
    """`sum p w c / sum p w` with `w_i = 1 - (1 - eta a_i)^(H_i)`: where the outer step rests.

    The mean delta is `sum p_i w_i (x - c_i)`, whatever the outer optimiser does with it.

    Args:
        curvature: `a_i` of each worker.
        optimum: `c_i` of each worker, in units of the parameter.
        lr: eta.
        inner_steps: H of all, or `H_i` of each worker.
        weights: `p_i` of the merge, up to a common factor.

    Source: the fixed point of the affine map of a phase.
    """
    above(0.0, weights=weights)
    pull = array(weights) * contraction(curvature, lr=lr, inner_steps=inner_steps)
    return float(np.sum(pull * array(optimum)) / np.sum(pull))


def drift(
    curvature: npt.ArrayLike,
    optimum: npt.ArrayLike,
    *,
    lr: float,
    inner_steps: npt.ArrayLike,
    weights: npt.ArrayLike = 1.0,
) -> float:
    """The bias: `fixed_point` less `true_optimum`; 0 at H = 1 with equal weights."""
    rest = fixed_point(curvature, optimum, lr=lr, inner_steps=inner_steps, weights=weights)
    return rest - true_optimum(curvature, optimum)


def cure(curvature: npt.ArrayLike, *, lr: float, inner_steps: npt.ArrayLike) -> FloatArray:
    """Merge weights `p_i` in proportion to `a_i / w_i`, of sum 1, that leave no bias at any H."""
    above(0.0, curvature=curvature)
    within(1.0, np.inf, inner_steps=inner_steps)
    share = array(curvature) / contraction(curvature, lr=lr, inner_steps=inner_steps)
    return share / np.sum(share)
