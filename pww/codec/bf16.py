"""Codec bf16: 2 bytes a value, rounded to nearest even; fp32's range, 8 bits of precision.

Error: at most 2^-8 of the value (half a unit in the last of 8 binary places); below the normal
range, half the smallest denormal, 2^-134. Needs no scales: bf16 has fp32's exponents, unlike fp16,
whose range a delta leaves.
"""

from collections.abc import Mapping

import torch

from pww.codec.base import Layout, Shape, check_parts, layout_bytes
from pww.codec.finite import is_finite, require_finite
from pww.errors import NotFiniteError


class Bf16:
    """Half the bytes of fp32."""

    name = "bf16"
    granule = 1
    exact_decode = True

    def layout(self, shape: Shape) -> Layout:
        """One part of the tensor's own shape."""
        return {"values": (torch.bfloat16, shape)}

    def encode(self, tensor: torch.Tensor, *, seed: int = 0) -> dict[str, torch.Tensor]:
        """The rounded values.

        Raises:
            NotFiniteError: a value is nan or inf, or would round to inf.
        """
        require_finite(tensor)
        values = tensor.to(torch.bfloat16)
        if not is_finite(values):
            raise NotFiniteError(
                f"a value of magnitude {float(tensor.abs().max()):.6g} is above bf16's largest, "
                f"{torch.finfo(torch.bfloat16).max:.6g}: use codec=fp32, and doubt the delta"
            )
        return {"values": values}

    def decode(self, parts: Mapping[str, torch.Tensor], shape: Shape) -> torch.Tensor:
        """The values, widened exactly.

        Raises:
            PayloadError: the parts are of another tensor.
        """
        check_parts(self.name, parts, self.layout(shape))
        return parts["values"].to(torch.float32).reshape(shape)

    def bound(self, tensor: torch.Tensor) -> torch.Tensor:
        """2^-8 of the magnitude, at least 2^-134."""
        return (tensor.abs() * 2.0**-8).clamp_min(2.0**-134)

    def size_bytes(self, shape: Shape) -> int:
        """2 bytes a value."""
        return layout_bytes(self.layout(shape))
