"""The images of a run: what is trained on, by its digest, and what accuracy is measured on.

An image is a window of one target, so that leases, books and the exactly-once audit know nothing of
images: window 17 is the 17th training image.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pww.config.schema import Images
from pww.data.images import cifar
from pww.data.images import digits as digit_images
from pww.data.images.digits import MEAN, STD
from pww.data.images.labelled import Labelled, split_off
from pww.errors import DataError


@dataclass(frozen=True, slots=True)
class Gallery:
    """Everything in memory. The properties are what `lease.space.CorpusFacts` wants."""

    train: Labelled
    measured: Labelled
    mean: Sequence[float]  # of the channels, on a scale of 0 to 1
    std: Sequence[float]
    flip: bool  # whether a mirrored image means the same

    @property
    def num_windows(self) -> int:
        """Images for training."""
        return len(self.train)

    @property
    def window_tokens(self) -> int:
        """An image and its label."""
        return 2

    @property
    def digest(self) -> str:
        """SHA-256 over the training images and their labels: what leases are of. Not over those
        that are measured on, of which each machine may have others.
        """
        seen = hashlib.sha256(np.ascontiguousarray(self.train.pixels).tobytes())
        seen.update(self.train.labels.tobytes())
        return seen.hexdigest()


def open_gallery(images: Images, *, project: Path) -> Gallery:
    """Reads what `images` names.

    Raises:
        DataError: it is not there, not what it should be, or too little.
    """
    if images.kind == "digits":
        train, held_out = split_off(digit_images(), every=images.held_out_every)
        return Gallery(_first(train, images), held_out, *scale_of(images), flip=False)
    folder = folder_of(images, project)
    train, measured = split_off(cifar.cifar10_train(folder), every=images.held_out_every)
    if images.measure != "held_out":
        measured = cifar.cifar10_test(folder, lossy=images.measure == "lossy_test")
    return Gallery(_first(train, images), measured, *scale_of(images), flip=True)


def scale_of(images: Images) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and deviation of each channel, on a scale of 0 to 1."""
    return (MEAN, STD) if images.kind == "digits" else (cifar.MEAN, cifar.STD)


def _first(train: Labelled, images: Images) -> Labelled:
    num = images.max_images or len(train)
    if num > len(train):
        raise DataError(
            f"data.max_images={num}: there are {len(train)} training images of {images.name}, "
            "without those held out; use fewer, or 0 for all"
        )
    return Labelled(train.pixels[:num], train.labels[:num], train.source)


def folder_of(images: Images, project: Path) -> Path:
    """Where CIFAR-10 is.

    Raises:
        DataError: nowhere that `images` names.
    """
    looked = [project / Path(root).expanduser() / images.kind for root in images.roots if root]
    for folder in looked:
        if folder.is_dir():
            return folder
    raise DataError(
        f"no folder {images.kind} (data.kind) in any of data.roots; looked for "
        f"{', '.join(map(str, looked)) or 'nothing'}; set PWW_DATA to the folder that holds it: "
        "nothing is downloaded"
    )
