"""Forms 6 and 7: random sparsification whose unsent rest is added to the next delta."""

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, array, share, within
from pww.lab.forms.mode import stationary


def error_feedback_limit(kept: float, *, workers: int = 1) -> float:
    """`z_max = 2 (2 - rho) N rho / (N rho^2 + 4 (1 - rho))`: stable for `alpha s` below it.

    With one worker it is `2 rho / (2 - rho)`. With many the draws average out and it nears
    `2 (2 - rho) / rho`, above the 2 of dense averaging: what comes by and by is a heavy ball of
    momentum `1 - rho` and learning rate `rho alpha`.
    """
    share(kept=kept)
    within(1.0, np.inf, workers=workers)
    return 2.0 * (2.0 - kept) * workers * kept / (workers * kept**2 + 4.0 * (1.0 - kept))


def error_feedback_variance(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    workers: int,
    kept: float,
    outer_lr: float = 1.0,
) -> FloatArray:
    """The stationary noise when what was not sent is not lost but late.

    `Var = alpha V_w / (N s (2-z)) [1 - z/2 + (1 - 1/N) k z (2-z) / 2] / (1 - z/z_max)` with
    `z = alpha s` and `k = 2 (1-rho) / (rho (2-rho))`. With N = 1 it is
    `alpha V_w / [s (2 - alpha s (2/rho - 1))]`. For a small outer step the price of compression
    goes to nothing, where an unbiased compressor pays `1 + omega` at any outer step.

    Args:
        contraction: s of each mode.
        inner_variance: V_w of each mode, in parameter^2.
        workers: N, each with its own draw of coordinates and its own rest.
        kept: rho, the probability that a coordinate is sent (whole, not times 1/rho).
        outer_lr: alpha of a plain outer step.

    Returns:
        Variance of each mode in parameter^2; inf where `alpha s >= z_max`.

    Source: the closed system of second moments of x and the rests (E x^2, E x e, E e^2, E e e').
    """
    above(0.0, outer_lr=outer_lr)
    limit = error_feedback_limit(kept, workers=workers)
    s = array(contraction)
    z = outer_lr * s
    late = 2.0 * (1.0 - kept) / (kept * (2.0 - kept))
    # z/2 is taken out of the first bracket: 2 - z is in both, and z_max may lie above 2
    bracket = 0.5 * (1.0 + (1.0 - 1.0 / workers) * late * z)
    margin = workers * s * (1.0 - z / limit)
    return stationary(outer_lr * array(inner_variance) * bracket, margin)
