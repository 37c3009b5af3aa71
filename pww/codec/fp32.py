"""Codec fp32: the values as they are, 4 bytes each, no error."""

from collections.abc import Mapping

import torch

from pww.codec.base import Layout, Shape, check_parts, layout_bytes
from pww.codec.finite import require_finite


class Fp32:
    """Exact: decoding gives back every bit, signed zeros and denormals included."""

    name = "fp32"
    granule = 1
    exact_decode = True

    def layout(self, shape: Shape) -> Layout:
        """One part of the tensor's own shape."""
        return {"values": (torch.float32, shape)}

    def encode(self, tensor: torch.Tensor, *, seed: int = 0) -> dict[str, torch.Tensor]:
        """The tensor itself.

        Raises:
            NotFiniteError: a value is nan or inf.
        """
        require_finite(tensor)
        return {"values": tensor}

    def decode(self, parts: Mapping[str, torch.Tensor], shape: Shape) -> torch.Tensor:
        """The part itself.

        Raises:
            PayloadError: the parts are of another tensor.
        """
        check_parts(self.name, parts, self.layout(shape))
        return parts["values"].reshape(shape)

    def bound(self, tensor: torch.Tensor) -> torch.Tensor:
        """Zero."""
        return torch.zeros_like(tensor)

    def size_bytes(self, shape: Shape) -> int:
        """4 bytes a value."""
        return layout_bytes(self.layout(shape))
