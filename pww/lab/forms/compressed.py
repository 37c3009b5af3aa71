"""Forms 4, 5 and 7: the noise of an unbiased compressor, of partial participation and of dither.

One law for all that sends each delta with a relative variance omega and the right mean:
random-k of a share r (`omega = 1/r - 1`, coordinate-wise), a worker that is there with probability
p and counts 1/p (`omega = 1/p - 1`), and their sparse synchronisation every H steps. Only the
dither differs: its error is of a fixed size, not of the delta's.
"""

import numpy as np
import numpy.typing as npt

from pww.lab.forms.domain import FloatArray, above, array, share, within
from pww.lab.forms.mode import stationary


def omega_of(kept: float) -> float:
    """`omega = 1/r - 1`, the relative variance of keeping a share r at random, times 1/r."""
    share(kept=kept)
    return 1.0 / kept - 1.0


def unbiased_variance(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    workers: int,
    omega: float,
    outer_lr: float = 1.0,
) -> FloatArray:
    """`Var = alpha V_w (1 + omega) / [M s (2 - alpha s c)]` with `c = 1 + omega / M`.

    Compression multiplies the noise by `1 + omega`, and at the same time brings the outer step
    nearer to its limit of stability, since the signal `s x` is compressed, too. In the source,
    forms 5 and 7 write the bracket as `(2 - alpha s) - alpha s omega / N`: it is the same. Near
    that limit theta has heavy tails, its fourth moment ends before its second does: a simulation
    of finite length lies below the form more often than not, with an interval too narrow.

    Args:
        contraction: s of each mode.
        inner_variance: V_w of each mode, in parameter^2.
        workers: M.
        omega: `E |C(d) - d|^2 / |d|^2`, coordinate by coordinate; 0 for none.
        outer_lr: alpha of a plain outer step.

    Returns:
        Variance of each mode in parameter^2; inf where `alpha s c >= 2`.

    Source: second moment of `x = x - alpha mean C(s x + n)`, independent over workers.
    """
    within(1.0, np.inf, workers=workers)
    within(0.0, np.inf, omega=omega)
    above(0.0, outer_lr=outer_lr)
    s = array(contraction)
    margin = workers * s * (2.0 - outer_lr * s * (1.0 + omega / workers))
    return stationary(outer_lr * array(inner_variance) * (1.0 + omega), margin)


def dithered_variance(
    contraction: npt.ArrayLike,
    inner_variance: npt.ArrayLike,
    *,
    workers: int,
    step: float,
    outer_lr: float = 1.0,
) -> FloatArray:
    """`Var = alpha (V_w + D^2 / 12) / [M s (2 - alpha s)]`: subtractive dither of step D.

    The error of `D round((d + u) / D) - u`, u uniform over a step and known to both ends, is
    uniform and independent of d: it adds `D^2 / 12` and leaves stability alone.

    Args:
        contraction: s of each mode.
        inner_variance: V_w of each mode, in parameter^2.
        workers: M.
        step: D in units of the parameter.
        outer_lr: alpha.

    Returns:
        Variance of each mode in parameter^2; inf where `alpha s >= 2`.

    Source: Schuchman 1964, Gray and Stockham 1993 (subtractive dither).
    """
    within(0.0, np.inf, step=step)
    noise = array(inner_variance) + step**2 / 12.0
    return unbiased_variance(contraction, noise, workers=workers, omega=0.0, outer_lr=outer_lr)
