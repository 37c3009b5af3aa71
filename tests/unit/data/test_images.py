"""CIFAR-10 from binary batches, sheets and JPEGs, digits, and files that are not theirs."""

import gzip
import hashlib
import importlib
import importlib.util
import io
import os
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pww.data.images import Labelled, cifar10_test, cifar10_train, digits, split_off
from pww.data.images.cifar import CLASSES
from pww.data.images.digits import MEAN, STD
from pww.errors import DataError

ROOT = Path(__file__).parents[3]
BATCH_1 = "5dd7e06a14cb22eb9f671a540d1b7c25"
"""The published MD5 of data_batch_1.bin."""


def batch(seed: int) -> bytes:
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 256, (10_000, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    return rows.tobytes()


def sheet(pixels: np.ndarray) -> bytes:
    """1,000 images one by one onto a sheet, written as the layout says."""
    picture = np.zeros((800, 1280, 3), np.uint8)
    for at, image in enumerate(pixels):
        row, column = divmod(at, 40)
        picture[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32] = image.transpose(1, 2, 0)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "webp", lossless=True, quality=0, method=0)
    return out.getvalue()


def test_binary_batches(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(batch(number % 2))
    (tmp_path / "test_batch.bin").write_bytes(batch(7))
    train, test = cifar10_train(tmp_path), cifar10_test(tmp_path)
    assert train.pixels.shape == (50_000, 3, 32, 32)
    assert (len(train), len(test)) == (50_000, 10_000)
    assert test.source == "CIFAR-10 test set"
    record = batch(0)[3073 * 5 : 3073 * 6]  # of data_batch_2
    assert train.labels[10_005] == record[0]
    assert train.pixels[10_005].tobytes() == record[1:]
    (tmp_path / "test_batch.bin").write_bytes(batch(7)[:-1])
    with pytest.raises(DataError, match="has 30729999 bytes, a batch of CIFAR-10 has 30730000"):
        cifar10_test(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\x0b" + batch(7)[1:])
    with pytest.raises(DataError, match="has label 11, CIFAR-10 has 0 to 9: it is damaged"):
        cifar10_test(tmp_path)


def test_sheets_are_read_row_by_row(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(1000, dtype=np.uint8) % 10
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_00.webp").write_bytes(sheet(pixels))
    (tmp_path / "test_labels_first1000.u8").write_bytes(labels.tobytes())
    test = cifar10_test(tmp_path)
    assert (test.pixels == pixels).all()
    assert (test.labels == labels).all()
    assert test.source == "first 1,000 images of the CIFAR-10 test set"
    (tmp_path / "test_labels_first1000.u8").write_bytes(labels[1:].tobytes())
    with pytest.raises(DataError, match="has 999 labels, not 1000"):
        cifar10_test(tmp_path)
    (tmp_path / "test_labels_first1000.u8").write_bytes(labels.tobytes())
    (tmp_path / "test" / "test_00.webp").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot be read as a picture"):
        cifar10_test(tmp_path)
    small = io.BytesIO()
    Image.new("RGB", (64, 32)).save(small, "png")
    (tmp_path / "test" / "test_00.webp").write_bytes(small.getvalue())
    with pytest.raises(DataError, match="is 64x32, a sheet is 1280x800"):
        cifar10_test(tmp_path)
    with pytest.raises(DataError, match=r"cannot be read \(No such file.*nothing is downloaded"):
        cifar10_train(tmp_path)


def test_lossy_images_are_called_so(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "lossy_jpeg"
    folder.mkdir(parents=True)
    for label, name in enumerate(CLASSES):
        one = io.BytesIO()
        Image.new("RGB", (32, 32), (label * 20, 0, 0)).save(one, "jpeg")
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for at in range(1000):
                archive.writestr(f"{at:04d}.jpg", one.getvalue())
    test = cifar10_test(tmp_path, lossy=True)
    assert test.source == "lossy-JPEG CIFAR-10 test set"
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert abs(int(test.pixels[9500, 0, 5, 5]) - 180) < 5
    (folder / "airplane.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"airplane.zip is damaged \(.*\): copy it again"):
        cifar10_test(tmp_path, lossy=True)
    with zipfile.ZipFile(folder / "airplane.zip", "w") as archive:
        archive.writestr("0.jpg", one.getvalue())
    with pytest.raises(DataError, match=r"airplane.zip has 1 images, not 1,000 of 32x32"):
        cifar10_test(tmp_path, lossy=True)


def test_real_sheets_are_the_published_batch() -> None:
    """Ten sheets, read as `cifar10_train` reads them, are data_batch_1.bin to the bit."""
    from pww.data.images.cifar import _sheet

    roots = [Path(os.environ.get("PWW_DATA", "data")), Path("../shared/data")]
    folder = next((r / "cifar10" for r in roots if (r / "cifar10" / "train").is_dir()), None)
    if folder is None:
        pytest.skip("CIFAR-10 is not here")
    labels = np.frombuffer((folder / "train_labels.u8").read_bytes(), np.uint8)[:10_000]
    pixels = [_sheet(folder / "train" / f"train_{number:02d}.webp") for number in range(10)]
    rows = np.concatenate(pixels).reshape(10_000, -1)
    records = np.concatenate([labels[:, None], rows], axis=1)
    assert hashlib.md5(records.tobytes(), usedforsecurity=False).hexdigest() == BATCH_1


def test_pictures_need_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_00.webp").write_bytes(b"x")
    (tmp_path / "test_labels_first1000.u8").write_bytes(bytes(1000))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="needs Pillow: pip install 'pww\\[vision\\]'"):
        cifar10_test(tmp_path)


def test_digits_come_from_scikit_learns_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(DataError, match="data=digits needs the images that scikit-learn brings"):
        digits()
    data = tmp_path / "sklearn" / "datasets" / "data"
    data.mkdir(parents=True)
    (tmp_path / "sklearn" / "__init__.py").write_text("raise AssertionError('imported')")
    importlib.invalidate_caches()
    file = data / "digits.csv.gz"
    with pytest.raises(DataError, match=r"cannot be read .*: install scikit-learn again"):
        digits()
    rows = [[*range(16), 16, *[0] * 47, 7], [8] * 64 + [3]]
    file.write_bytes(gzip.compress("\n".join(",".join(map(str, r)) for r in rows).encode()))
    images = digits()
    assert images.pixels.shape == (2, 1, 8, 8)
    assert images.labels.tolist() == [7, 3]
    levels = images.pixels[0, 0].ravel()[:17].tolist()
    assert (levels[0], levels[16]) == (0, 255)
    assert all(abs(level - at * 255 / 16) <= 0.5 for at, level in enumerate(levels))
    file.write_bytes(gzip.compress(",".join(["17"] * 65).encode()))
    with pytest.raises(DataError, match="is not the table of digits"):
        digits()


def test_the_digits_are_the_published_ones() -> None:
    """How many there are of each, the first image, and the channel's statistics."""
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn is not installed (pip install 'pww[vision]')")
    images = digits()
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(images.labels).tolist() == counts
    assert images.labels[:3].tolist() == [0, 1, 2]
    levels = np.round(images.pixels[0, 0] / 255 * 16).astype(int)
    assert levels[:2].tolist() == [[0, 0, 5, 13, 9, 1, 0, 0], [0, 0, 13, 15, 10, 15, 5, 0]]
    scaled = images.pixels / 255
    assert scaled.mean() == pytest.approx(MEAN[0], abs=1e-4)
    assert scaled.std() == pytest.approx(STD[0], abs=1e-4)


def test_what_the_tests_need_comes_with_them() -> None:
    """So that nothing of images is skipped where `dev` is installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(extras["vision"]) <= set(extras["dev"])


def test_every_fifth_is_held_out() -> None:
    pixels = np.zeros((12, 1, 1, 1), np.uint8)
    images = Labelled(pixels, np.arange(12, dtype=np.uint8), "set")
    train, held = split_off(images, every=5)
    assert held.labels.tolist() == [4, 9]
    assert train.labels.tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]
    assert held.source == "every 5th image of the set, held out"
