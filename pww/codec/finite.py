"""Whether every value of a tensor is finite, in bounded memory.

The check runs before a cast (a site) and after decoding (the central), so a nan or inf neither
leaves a site silently nor enters a merge.
"""

import math

import torch

from pww.errors import NotFiniteError

CHUNK = 1 << 20
"""Elements looked at together: counting the bad ones needs scratch of the size of the input."""


def is_finite(tensor: torch.Tensor) -> bool:
    """True if no value is nan or inf; integers always are finite."""
    if not tensor.is_floating_point():
        return True
    if tensor.numel() == 0:
        return True
    # nan and inf are carried through; ten times as fast as `isfinite` and without scratch
    return all(math.isfinite(float(end)) for end in torch.aminmax(tensor))


def require_finite(tensor: torch.Tensor) -> None:
    """Lets finite values pass.

    Raises:
        NotFiniteError: with the number of bad values; the caller adds the tensor's name.
    """
    if is_finite(tensor):
        return
    bad = sum(
        int((~torch.isfinite(part)).sum().item()) for part in torch.split(tensor.reshape(-1), CHUNK)
    )
    raise NotFiniteError(
        f"{bad} of {tensor.numel()} values are nan or inf; such a delta is never merged: lower the "
        "learning rate, or look for a broken device"
    )
