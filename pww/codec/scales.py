"""Scales and sums of rows, made and checked with operations that no device rounds differently.

Only additions in a stated order, multiplications, divisions of tensor by tensor, maxima: a division
by a Python number becomes a multiplication by its inverse on some devices, and a library's `sum`
adds in an order of its own.
"""

import numpy as np
import torch
from torch.nn.functional import pad

from pww.codec.finite import is_finite
from pww.errors import NotFiniteError, PayloadError

SMALLEST = 2.0**-100
"""Rows whose scale would come from a magnitude below it decode to zero: so no scale and no product
of one is denormal, and a device that flushes denormals finds the same bits. What is lost, error
feedback keeps."""
LARGEST = float(np.finfo(np.float32).max)
TOO_LARGE = (
    "a value is nan or inf, or too large for this codec: use codec=fp32, and doubt the delta"
)


def peaks(rows: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of each row, as a column.

    Raises:
        NotFiniteError: a value is nan or inf.
    """
    # two reductions without scratch are faster than one over `abs`; both carry nan through
    largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_())
    if not is_finite(largest):
        raise NotFiniteError(TOO_LARGE)
    return largest


def step_scales(peak: torch.Tensor, *, levels: int) -> torch.Tensor:
    """Scales by which a row's values lie within `-levels … levels`; 0 for a row of (nearly) zeros.

    The factor is 1/levels rounded down: `levels * scale` never is above the peak, so that decoding
    cannot overflow.
    """
    down = float(np.nextafter(np.float32(1.0) / np.float32(levels), np.float32(0)))
    return torch.where(peak >= SMALLEST, peak * down, 0.0)


def divisors(scales: torch.Tensor) -> torch.Tensor:
    """What to divide by. 1 where the scale is 0: such values are far below half a step of 1."""
    return torch.where(scales > 0, scales, 1.0)


def sums(rows: torch.Tensor) -> torch.Tensor:
    """Sums of rows as a column: with zeros up to a power of two, half is added to half."""
    width = rows.shape[1]
    full = 1 << (width - 1).bit_length()
    if full > width:
        rows = pad(rows, (0, full - width))
    while full > 1:
        full //= 2
        rows = rows[:, :full] + rows[:, full:]
    return rows


def means(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """`total / count` for scales: 0 where nothing was counted or the mean is (nearly) zero.

    Raises:
        NotFiniteError: a total is nan or inf.
    """
    if not is_finite(total):
        raise NotFiniteError(TOO_LARGE)
    mean = total / count.clamp_min(1.0)
    return torch.where(mean >= SMALLEST, mean, 0.0)


def check_scales(scales: torch.Tensor, *, largest: float = LARGEST) -> None:
    """Lets scales pass that are 0 to `largest`.

    Raises:
        PayloadError: one is none of a codec's.
    """
    low, high = (float(end) for end in torch.aminmax(scales))
    if bool(torch.signbit(scales).any()) or not high <= largest:
        worst = high if low >= 0 and high > 0 else low
        raise PayloadError(f"a scale of {worst:g} is damaged: scales are 0 to {largest:.6g}")
