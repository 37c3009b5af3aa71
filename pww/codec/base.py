"""What a codec is: one fp32 tensor to named parts and back, with a stated error and size."""

import math
from collections.abc import Mapping
from typing import Protocol

import torch

Shape = tuple[int, ...]
Layout = dict[str, tuple[torch.dtype, Shape]]
"""Part name -> dtype and shape; follows from the tensor's shape alone: sizes are known early."""


class Codec(Protocol):
    """A way to write fp32 tensors in fewer bytes; stateless, the same on every device."""

    @property
    def name(self) -> str:
        """The name that payloads and configs use."""

    @property
    def elementwise(self) -> bool:
        """Whether each value's part depends on that value alone.

        Then a run of the values of each part decodes to that run of the tensor, and a tensor that
        is too large for memory is decoded in pieces.
        """

    def layout(self, shape: Shape) -> Layout:
        """The parts that a tensor of `shape` becomes, in the order in which they are written."""

    def encode(self, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of an fp32 `tensor`; does not change it.

        Raises:
            NotFiniteError: a value is nan or inf, or too large for this codec.
        """

    def decode(self, parts: Mapping[str, torch.Tensor], shape: Shape) -> torch.Tensor:
        """The fp32 tensor of `shape`; it may share memory with `parts`."""

    def bound(self, tensor: torch.Tensor) -> torch.Tensor:
        """Largest `|tensor - decode(encode(tensor))|` that may happen, for each value."""

    def size_bytes(self, shape: Shape) -> int:
        """Bytes of all parts of a tensor of `shape`."""


def layout_bytes(layout: Layout) -> int:
    """Bytes of all parts of `layout`."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())
