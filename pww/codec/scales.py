"""Scales: one fp32 a row, computed and checked with operations that no device rounds differently.

Only multiplication, division of tensor by tensor, maximum: a division by a Python number would
become a multiplication by its inverse on some devices and not on others.
"""

import numpy as np
import torch

from pww.codec.finite import is_finite
from pww.errors import NotFiniteError, PayloadError

SMALLEST = 2.0**-100
"""Rows whose largest magnitude is below decode to zero: so no scale and no product of a scale is
denormal, and a device that flushes denormals finds the same bits. Feedback keeps what is lost."""
LARGEST = float(np.finfo(np.float32).max)


def peaks(rows: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of each row, as a column.

    Raises:
        NotFiniteError: a value is nan or inf.
    """
    # two reductions without scratch are faster than one over `abs`; both carry nan through
    largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_())
    if not is_finite(largest):
        raise NotFiniteError("a value is nan or inf")
    return largest


def step_scales(peak: torch.Tensor, *, levels: int) -> torch.Tensor:
    """Scales by which a row's values lie within `-levels … levels`; 0 for a row of (nearly) zeros.

    The factor is 1/levels rounded down: `levels * scale` never is above the peak, so that decoding
    cannot overflow.
    """
    down = float(np.nextafter(np.float32(1.0) / np.float32(levels), np.float32(0)))
    return torch.where(peak >= SMALLEST, peak * down, 0.0)


def divisors(scales: torch.Tensor) -> torch.Tensor:
    """What to divide by; 1 for rows that are all zero... and stay so, being below half a step."""
    return torch.where(scales > 0, scales, 1.0)


def check_scales(scales: torch.Tensor, *, levels: int) -> None:
    """Lets scales pass that are finite, not negative, and cannot make a value infinite.

    Raises:
        PayloadError: one is none of a codec's.
    """
    low, high = (float(end) for end in torch.aminmax(scales))
    if bool(torch.signbit(scales).any()) or not high * levels <= LARGEST:
        worst = high if low >= 0 and high > 0 else low
        raise PayloadError(
            f"a scale of {worst:g} is damaged: scales are 0 to {LARGEST / levels:.6g}"
        )
