"""Images and their labels in memory, and where they came from in words."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Labelled:
    """`pixels` (n, channels, height, width), `labels` (n); `source` belongs beside every figure."""

    pixels: Bytes
    labels: Bytes
    source: str

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)


def split_off(images: Labelled, *, every: int) -> tuple[Labelled, Labelled]:
    """All but every n-th image to train on, and those to measure by; always the same ones."""
    held = np.arange(len(images)) % every == every - 1
    name = f"every {every}th image of the {images.source}, held out"
    return (
        Labelled(images.pixels[~held], images.labels[~held], images.source),
        Labelled(images.pixels[held], images.labels[held], name),
    )
