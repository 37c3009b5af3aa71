"""What a ResNet keeps over a checkpoint, a phase that went to nan, and a device of its own."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny import Never, Steps

from pww.config.load import compose
from pww.data.images import Labelled
from pww.data.images.gallery import Gallery
from pww.trainer.api import PhaseResult
from pww.trainer.ranks import Ranks
from pww.trainer.shards import buffers
from pww.trainer.vision import VisionTrainer

Build = Callable[..., VisionTrainer]


def shapes(num: int = 96) -> Gallery:
    draw = np.random.default_rng(5)
    pixels = draw.integers(0, 256, (num, 1, 8, 8)).astype(np.uint8)
    images = Labelled(pixels, draw.integers(0, 10, num).astype(np.uint8), "noise")
    return Gallery(images, images, (0.5,), (0.3,), flip=False)


@pytest.fixture
def resnet(ranks: Ranks) -> Iterator[Build]:
    """resnet("optim.momentum=0") → a trainer that is closed after the test."""
    built: list[VisionTrainer] = []

    def make(*words: str) -> VisionTrainer:
        config = compose([
            "model=resnet_digits", "site.cores_per_rank=1", "optim.batch_windows=16",
            "darl.block_windows=16", "metrics.every_steps=1", *words,
        ])  # fmt: skip
        built.append(VisionTrainer(config, shapes(), ranks=ranks))
        return built[-1]

    yield make
    for trainer in built:
        trainer.close()


def phase(trainer: VisionTrainer, num: int = 32) -> PhaseResult:
    ids = list(range(num))
    return trainer.run(ids, progress=0.3, progress_end=0.5, on_step=Steps(), stop=Never())


def kept(trainer: VisionTrainer) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in buffers(trainer.module)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def save(trainer: VisionTrainer, folder: Path) -> None:
    trainer.save_inner(folder)
    save_file(dict(trainer.tensors()), folder / "theta.safetensors")


def load(trainer: VisionTrainer, folder: Path) -> None:
    trainer.load_inner(folder)
    trainer.load(folder / "theta.safetensors")


@pytest.mark.parametrize("momentum", ["0", "0.9"])
def test_a_resumed_run_goes_on_as_if_nothing_had_been(
    resnet: Build, tmp_path: Path, momentum: str
) -> None:
    """Without a momentum SGD has no state at all; the statistics are state nevertheless."""
    words = f"optim.momentum={momentum}"
    first = resnet(words)
    fresh = kept(first)
    phase(first)
    save(first, tmp_path / "inner")
    other = resnet(words)
    load(other, tmp_path / "inner")
    assert same(kept(other), kept(first))
    assert not same(kept(other), fresh)
    assert first.evaluate() == other.evaluate()
    assert phase(first).loss == phase(other).loss
    assert same(dict(other.tensors()), dict(first.tensors()))
    assert same(kept(other), kept(first))


def test_statistics_outlive_a_reset_of_the_optimiser(resnet: Build, tmp_path: Path) -> None:
    """A replica that had no part of the next phase saves right after a phase that was void."""
    first = resnet()
    phase(first)
    first.reset_inner()
    save(first, tmp_path / "inner")
    before = kept(first)
    other = resnet()
    load(other, tmp_path / "inner")
    assert same(kept(other), before)
    copied = tmp_path / "copied"
    first.copy_inner().write(copied)
    again = resnet()
    again.load_inner(copied)
    assert same(kept(again), before)


@pytest.mark.parametrize("when", ["first", "last"])
def test_a_phase_that_goes_to_nan_leaves_the_statistics_before_it(
    resnet: Build, tmp_path: Path, when: str
) -> None:
    """A running mean never comes back from nan; after the last step alone it is finite by chance.
    Either way theta, and what is evaluated with it, is what it was.
    """
    trainer = resnet()
    phase(trainer)
    save(trainer, tmp_path / "inner")
    before, score = kept(trainer), trainer.evaluate()
    broken = Steps()

    def break_it(**row: Any) -> None:
        Steps.__call__(broken, **row)
        if row["done"] == (1 if when == "first" else row["of"]):
            with torch.no_grad():
                next(trainer.module.parameters()).fill_(math.nan)

    trainer.run(
        range(32), progress=0.3, progress_end=0.5, on_step=break_it, stop=Never()
    )  # fmt: skip
    assert len(broken.rows) == 2
    assert same(kept(trainer), before)
    trainer.load(tmp_path / "inner" / "theta.safetensors")
    trainer.reset_inner()
    assert trainer.evaluate() == score
    assert math.isfinite(phase(trainer).loss)
    assert math.isfinite(trainer.evaluate().loss)
