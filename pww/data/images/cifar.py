"""CIFAR-10 from local files: the published binary batches, or lossless sheets of 1,000 images.

    data_batch_1.bin ... data_batch_5.bin, test_batch.bin     records of a label and 3,072 bytes
    train/train_00.webp ... train_49.webp, train_labels.u8    25 rows x 40 columns of 32x32
    test/test_00.webp, test_labels_first1000.u8               the first 1,000 test images
    test/lossy_jpeg/CLASS.zip                                 all 10,000, as JPEG

Nothing is downloaded. Of the sheets only 1,000 test images are exact; which ones were used is in
`Labelled.source`, and an accuracy without it says little.
"""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pww.data.images.labelled import Bytes, Labelled
from pww.errors import DataError

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
MEAN, STD = (0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)
"""Of the training images' channels, on a scale of 0 to 1."""
ROWS, COLUMNS, SIDE = 25, 40, 32
RECORD = 1 + 3 * SIDE * SIDE
SHEETS = 50


def cifar10_train(folder: Path) -> Labelled:
    """The 50,000 training images in their published order.

    Raises:
        DataError: they are not there, or not what they should be.
    """
    batches = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    if batches[0].is_file():
        return _binary(batches, "CIFAR-10 training set")
    paths = [folder / "train" / f"train_{number:02d}.webp" for number in range(SHEETS)]
    labels = _labels(folder / "train_labels.u8", SHEETS * ROWS * COLUMNS)
    return Labelled(np.concatenate([_sheet(p) for p in paths]), labels, "CIFAR-10 training set")


def cifar10_test(folder: Path, *, lossy: bool = False) -> Labelled:
    """The test images: 10,000 of the binary batches; of the sheets 1,000, or all if `lossy`.

    Raises:
        DataError: they are not there, or not what they should be.
    """
    batch = folder / "test_batch.bin"
    if batch.is_file() and not lossy:
        return _binary([batch], "CIFAR-10 test set")
    if lossy:
        return _jpegs(folder / "test" / "lossy_jpeg")
    labels = _labels(folder / "test_labels_first1000.u8", ROWS * COLUMNS)
    pixels = _sheet(folder / "test" / "test_00.webp")
    return Labelled(pixels, labels, "first 1,000 images of the CIFAR-10 test set")


def _binary(paths: Sequence[Path], source: str) -> Labelled:
    batches = []
    for path in paths:
        data = np.frombuffer(_read(path), dtype=np.uint8)
        if len(data) != 10_000 * RECORD:
            raise DataError(
                f"{path} has {len(data)} bytes, a batch of CIFAR-10 has {10_000 * RECORD}: it is "
                "damaged or another version (the binary one is needed); unpack it again"
            )
        batches.append(data.reshape(-1, RECORD))
    rows = np.concatenate(batches)
    pixels = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, SIDE, SIDE)
    return Labelled(pixels, _checked(rows[:, 0].copy(), paths[0].parent), source)


def _sheet(path: Path) -> Bytes:
    """The images of a sheet, row by row."""
    sheet = _picture(_read(path), path)
    if sheet.shape != (ROWS * SIDE, COLUMNS * SIDE, 3):
        raise DataError(
            f"{path} is {sheet.shape[1]}x{sheet.shape[0]}, a sheet is {COLUMNS * SIDE}x"
            f"{ROWS * SIDE}: it is another file; copy it again"
        )
    cells = sheet.reshape(ROWS, SIDE, COLUMNS, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cells).reshape(-1, 3, SIDE, SIDE)


def _jpegs(folder: Path) -> Labelled:
    pixels, labels = [], []
    for label, name in enumerate(CLASSES):
        path = folder / f"{name}.zip"
        try:
            with zipfile.ZipFile(io.BytesIO(_read(path))) as archive:
                names = sorted(n for n in archive.namelist() if n.endswith(".jpg"))
                found = [_picture(archive.read(n), path) for n in names]
        except zipfile.BadZipFile as why:
            raise DataError(f"{path} is damaged ({why}): copy it again") from why
        if len(found) != 1000 or any(one.shape != (SIDE, SIDE, 3) for one in found):
            raise DataError(f"{path} has {len(found)} images, not 1,000 of 32x32: copy it again")
        pixels.append(np.stack(found).transpose(0, 3, 1, 2))
        labels += [label] * len(found)
    return Labelled(
        np.ascontiguousarray(np.concatenate(pixels)), np.array(labels, dtype=np.uint8),
        "lossy-JPEG CIFAR-10 test set",
    )  # fmt: skip


def _picture(data: bytes, path: Path) -> Bytes:
    try:
        from PIL import Image
    except ImportError as why:
        raise DataError(
            f"{path} is a picture, which needs Pillow: pip install 'pww[vision]', or use the "
            "binary version of CIFAR-10"
        ) from why
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as why:
        raise DataError(f"{path} cannot be read as a picture ({why}): copy it again") from why


def _labels(path: Path, num: int) -> Bytes:
    labels = np.frombuffer(_read(path), dtype=np.uint8)
    if len(labels) != num:
        raise DataError(f"{path} has {len(labels)} labels, not {num}: copy it again")
    return _checked(labels, path)


def _checked(labels: Bytes, path: Path) -> Bytes:
    if labels.max() >= len(CLASSES):
        raise DataError(f"{path} has label {labels.max()}, CIFAR-10 has 0 to 9: it is damaged")
    return labels


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as why:
        raise DataError(
            f"{path} cannot be read ({why.strerror}): CIFAR-10 is its five data_batch_N.bin and "
            "test_batch.bin, or sheets in train/ and test/; nothing is downloaded"
        ) from why
