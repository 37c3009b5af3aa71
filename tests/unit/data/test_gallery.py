"""What a run trains on and measures on, as one thing with a digest."""

from pathlib import Path

import numpy as np
import pytest

from pww.config.load import compose
from pww.config.schema import Images
from pww.data.images import Labelled, cifar, gallery
from pww.errors import DataError


def images(*words: str, model: str = "resnet18") -> Images:
    found = compose([f"model={model}", *words]).data
    assert isinstance(found, Images)
    return found


def made(num: int) -> Labelled:
    draw = np.random.default_rng(num)
    pixels = draw.integers(0, 256, (num, 3, 4, 4), dtype=np.uint8)
    return Labelled(pixels, draw.integers(0, 10, num).astype(np.uint8), f"set of {num}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cifar, "cifar10_train", lambda where: made(20))
    monkeypatch.setattr(cifar, "cifar10_test", lambda where, *, lossy: made(12 if lossy else 11))
    (tmp_path / "cifar10").mkdir()
    return tmp_path


def test_a_fifth_is_held_out_and_never_trained_on(folder: Path) -> None:
    one = gallery.open_gallery(images(f"data.roots=[{folder}]"), project=Path("/"))
    assert (one.num_windows, one.window_tokens, len(one.measured)) == (16, 2, 4)
    assert one.measured.labels.tolist() == made(20).labels[4::5].tolist()
    assert one.flip
    few = gallery.open_gallery(
        images(f"data.roots=[{folder}]", "data.max_images=7"), project=Path("/")
    )
    assert few.num_windows == 7
    assert few.digest != one.digest
    again = gallery.open_gallery(images(f"data.roots=[{folder}]"), project=Path("/"))
    assert again.digest == one.digest
    with pytest.raises(DataError, match=r"data\.max_images=17: there are 16 training images"):
        gallery.open_gallery(
            images(f"data.roots=[{folder}]", "data.max_images=17"), project=Path("/")
        )


@pytest.mark.parametrize(("measure", "num"), [("test", 11), ("lossy_test", 12)])
def test_a_test_set_is_measured_on_if_asked(measure: str, num: int, folder: Path) -> None:
    one = gallery.open_gallery(
        images(f"data.roots=[{folder}]", f"data.measure={measure}"), project=Path("/")
    )
    assert len(one.measured) == num
    assert one.num_windows == 16


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no folder cifar10 \(data.kind\).*nothing is downloaded"):
        gallery.open_gallery(images(f"data.roots=[{tmp_path}]"), project=Path("/"))
