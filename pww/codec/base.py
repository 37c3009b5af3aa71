"""What a codec is: one fp32 tensor to named parts and back, with a stated error and size."""

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from pww.errors import PayloadError

Shape = tuple[int, ...]
Layout = dict[str, tuple[torch.dtype, Shape]]
"""Part name -> dtype and shape; follows from the tensor's shape alone: sizes are known early."""


class Codec(Protocol):
    """A way to write fp32 tensors in fewer bytes; stateless, the same on every device."""

    @property
    def name(self) -> str:
        """Kind and parameters in one word, such as `topk-64-b2`: what payloads are marked with."""

    @property
    def granule(self) -> int:
        """Values of an independent piece.

        For `start` and `n` multiples of it (or `n` up to the end), the flat values from `start` to
        `start + n` are in each part as `numel(layout((n,)))` elements from element
        `numel(layout((start,)))` on. So a tensor that is too large for memory goes in runs.
        """

    @property
    def exact_decode(self) -> bool:
        """Whether decoding gives the same bits on every IEEE device and in every run."""

    def layout(self, shape: Shape) -> Layout:
        """The parts that a tensor of `shape` becomes, in the order in which they are written."""

    def encode(self, tensor: torch.Tensor, *, seed: int = 0) -> dict[str, torch.Tensor]:
        """The parts of an fp32 `tensor`; does not change it. `seed` is for codecs that draw.

        A run of granules from `start` on has the seed `seed + start // granule`.

        Raises:
            NotFiniteError: a value is nan or inf, or too large for this codec.
        """

    def decode(self, parts: Mapping[str, torch.Tensor], shape: Shape) -> torch.Tensor:
        """The fp32 tensor of `shape`; it may share memory with `parts`.

        Raises:
            PayloadError: they are not what this codec writes for `shape`.
        """

    def bound(self, tensor: torch.Tensor) -> torch.Tensor:
        """Largest `|tensor - decode(encode(tensor))|` that may happen, for each value."""

    def size_bytes(self, shape: Shape) -> int:
        """Bytes of all parts of a tensor of `shape`."""


def layout_bytes(layout: Layout) -> int:
    """Bytes of all parts of `layout`."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout.values())


def check_parts(name: str, parts: Mapping[str, torch.Tensor], layout: Layout) -> None:
    """Lets parts pass that are laid out as codec `name` does it.

    Raises:
        PayloadError: one is missing, too many, or has another dtype or shape.
    """
    here = {part: (values.dtype, tuple(values.shape)) for part, values in parts.items()}
    for part in layout.keys() | here.keys():
        if layout.get(part) != here.get(part):
            raise PayloadError(
                f"codec {name}: part {part} is {_words(here.get(part))} and must be "
                f"{_words(layout.get(part))}: damaged, or of another tensor"
            )


def _words(row: tuple[torch.dtype, Shape] | None) -> str:
    return "absent" if row is None else f"{row[0]} {row[1]}"
