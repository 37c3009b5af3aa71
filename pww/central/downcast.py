"""The applied update as sites get it: encoded, and what encoding lost is kept for the next round.

    v = (theta - theta') + e;   q = decode(encode(v));   e = v - q;   theta = theta - q

Pinned: plain fp32 kernels, one a line, so that a site that subtracts the same `q` has the same
bits. Theta at the central is what the sites have, and `e`, which never leaves it, is how far that
is from the exact step. Source: error feedback, arXiv 1901.09847, algorithm 1, applied downwards.
"""

from collections.abc import Mapping

import torch

from pww.codec import Codec, require_finite
from pww.transport.tensorfile import TensorReader


class Downcast:
    """One codec's way down, from the residuals of the round before (None: they are all zero)."""

    def __init__(self, codec: Codec, residuals: TensorReader | None, *, piece: int) -> None:
        self._codec, self._residuals = codec, residuals
        self._before = torch.empty(piece)

    def remember(self, theta: torch.Tensor) -> None:
        """Keeps a piece of theta for `update`; the outer step changes it in place."""
        self._before[: theta.numel()].copy_(theta)

    def update(
        self, name: str, theta: torch.Tensor, residual: torch.Tensor, *, start: int
    ) -> Mapping[str, torch.Tensor]:
        """The encoded update of a piece; `theta` becomes the sites' in place.

        Args:
            name: the tensor of which it is a piece.
            theta: theta', as the outer step left it; flat fp32.
            residual: filled with the next residual.
            start: index of the piece's first value in the tensor.

        Raises:
            NotFiniteError: the update is not finite, or too large for the codec.
        """
        before = self._before[: theta.numel()]
        v = torch.sub(before, theta, out=theta)
        if self._residuals is not None:
            self._residuals.read(name, residual, start=start)
            v.add_(residual)
        parts = {part: _own(values, v) for part, values in self._codec.encode(v).items()}
        q = self._codec.decode(parts, (v.numel(),))
        torch.sub(v, q, out=residual)
        torch.sub(before, q, out=theta)
        require_finite(theta)
        return parts


def _own(part: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A part in memory of its own: an exact codec's is the tensor itself, which changes."""
    shared = part.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
    return part.clone() if shared else part
