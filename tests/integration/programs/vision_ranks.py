"""vision_ranks.py FOLDER: the ResNet's engine on 1, 2, 3, 4 and 8 ranks; FOLDER/NAME.json.

Rank 0 of each group writes what it found; the test compares.
"""

import gc
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # FSDP2 would import it once in every rank
from forked import in_ranks
from safetensors.torch import save_file
from tiny import After, Never, Steps
from torch import nn

from pww.config.load import compose
from pww.config.schema import Config, Images
from pww.data.images import Labelled
from pww.data.images.gallery import Gallery, open_gallery
from pww.trainer import vision
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.statistics import snapshot
from pww.trainer.vision import VisionTrainer

WORDS = [
    "model=resnet_digits", "optim.batch_windows=24", "site.cores_per_rank=1",
    "metrics.every_steps=2", "metrics.wandb.mode=disabled", "optim.lr=0.05", "seed=7",
]  # fmt: skip
IDS = list(range(60))  # the last of 3 steps has 12 images, of 2 on rank 7 of 8 none


def config(ranks: int, kind: str, *, recompute: str = "none", **over: Any) -> Config:
    parallel = {"kind": kind, "ranks": ranks, "shard_ranks": ranks}
    parallel["activation_checkpoint"] = recompute
    return BASE.model_copy(
        update={"parallel": BASE.parallel.model_copy(update=parallel), **over}
    )  # fmt: skip


def gallery(num: int = 300) -> Gallery:
    """Ten shapes, moved and noisy: easy to learn, and not by their mean."""
    draw = np.random.default_rng(5)
    shapes = draw.integers(0, 2, (10, 1, 8, 8)) * 180
    labels = draw.integers(0, 10, num).astype(np.uint8)
    noisy = shapes[labels] + draw.integers(0, 60, (num, 1, 8, 8))
    images = Labelled(noisy.astype(np.uint8), labels, "shapes")
    cut = num * 4 // 5
    parts = [
        Labelled(images.pixels[at], images.labels[at], "shapes")
        for at in (slice(cut), slice(cut, None))
    ]
    return Gallery(parts[0], parts[1], (0.4,), (0.35,), flip=False)


@contextmanager
def engine(kind: str, *, plain: bool = False, **over: Any) -> Iterator[tuple[Any, Ranks]]:
    """A trainer on this group of ranks; `plain`: of a network whose ranks need not see alike."""
    init_ranks(config(int(os.environ["WORLD_SIZE"]), kind))
    ranks = Ranks()

    class Engine(VisionTrainer):
        def _built(self) -> nn.Module:
            if not plain:
                return super()._built()
            torch.manual_seed(3)
            return nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 10))

    trainer = Engine(config(ranks.world, kind, **over), gallery(), ranks=ranks)
    yield trainer, ranks
    trainer.close()


def phase(trainer: Any, ids: list[int], stop: Any = None) -> dict[str, Any]:
    steps = Steps()
    result = trainer.run(
        ids, progress=0.3, progress_end=0.5, on_step=steps, stop=stop or Never()
    )  # fmt: skip
    row = {name: getattr(result, name) for name in ("steps", "tokens", "loss", "stopped")}
    return {**row, "drawn": list(result.drawn), "rows": steps.rows}


def state(trainer: Any, ranks: Ranks, path: Path) -> None:
    """Parameters, optimiser and statistics, whole."""
    found = {}
    for name, tensor in {**dict(trainer.tensors()), **trainer._optimizers.state_dict()}.items():
        if isinstance(tensor, torch.Tensor):
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            found[name] = whole.detach().clone().contiguous()
    if ranks.rank == 0:
        save_file(found, path)


def law(name: str, kind: str) -> None:
    """Uneven batches on whatever ranks: the mean over their images."""
    with engine(kind, plain=True) as (trainer, ranks):
        row = phase(trainer, IDS[:50])
        state(trainer, ranks, FOLDER / f"{name}.safetensors")
        score = trainer.evaluate()
        row |= {"count": score.tokens, "accuracy": score.accuracy, "held_out": score.loss}
        if ranks.rank == 0:
            (FOLDER / f"{name}.json").write_text(json.dumps(row))


def write() -> None:
    """Four sharded ranks train and save; what follows is trained by them too."""
    with engine("fsdp") as (trainer, ranks):
        phase(trainer, IDS)
        trainer.save_inner(FOLDER / "inner")
        state(trainer, ranks, FOLDER / "saved.safetensors")
        tensors = {n: t for n, t in trainer.tensors() if ranks.rank == 0}
        if ranks.rank == 0:
            save_file(tensors, FOLDER / "theta.safetensors")


def read(name: str, kind: str, recompute: str = "none") -> None:
    with engine(kind, recompute=recompute) as (trainer, ranks):
        trainer.load(FOLDER / "theta.safetensors")
        trainer.load_inner(FOLDER / "inner")
        state(trainer, ranks, FOLDER / f"{name}.safetensors")
        row = phase(trainer, IDS)
        row |= {"step": trainer.step, "held_out": trainer.evaluate().loss}
        if ranks.rank == 0:
            (FOLDER / f"{name}.json").write_text(json.dumps(row))


def ruined(trainer: Any) -> bool:
    """Whether statistics are lost in a phase that goes to nan."""
    before = snapshot(trainer.module)
    with torch.no_grad():
        trainer.module.conv1.weight.fill_(float("nan"))
    assert np.isnan(phase(trainer, IDS)["loss"])
    return not all(map(torch.equal, before, snapshot(trainer.module)))


def learn() -> None:
    """Accuracy on images that were not trained on, in fp32 and bf16; a stop in between."""
    for dtype in ("fp32", "bf16"):
        with engine("single", model=BASE.model.model_copy(update={"dtype": dtype})) as (
            trainer, _,
        ):  # fmt: skip
            first = trainer.evaluate().accuracy
            for _ in range(6):
                row = phase(trainer, list(range(240)))
            stopped = phase(trainer, list(range(240)), After(3))
            score = trainer.evaluate()
            masters = {str(p.dtype) for p in trainer.module.parameters()}
            lost = ruined(trainer)
            (FOLDER / f"learn-{dtype}.json").write_text(
                json.dumps(
                    [
                        first,
                        score.accuracy,
                        score.tokens,
                        row["loss"],
                        sorted(masters),
                        stopped,
                        lost,
                    ]
                )
            )


def recalibrate(name: str, kind: str) -> None:
    """Which means an evaluation used, with `recalibrate_bn` and without; those of all images; and
    those that training left. Images stay where they are for it; then, whether they are moved.
    """
    used: list[list[float]] = []
    with engine(kind) as (trainer, ranks):
        phase(trainer, IDS)
        score, norm = trainer._score, trainer.module.bn1

        def watched() -> Any:
            used.append(norm.running_mean.tolist())
            return score()

        trainer._score = watched
        shown = torch.cat(list(trainer._some()))
        vision.augmented = lambda pixels, **_: pixels  # type: ignore[assignment]
        is_moved = not torch.equal(shown, torch.cat(list(trainer._some())))
        for wanted in (True, False):
            diloco = BASE.diloco.model_copy(update={"recalibrate_bn": wanted})
            trainer._config = trainer._config.model_copy(update={"diloco": diloco})
            trainer.evaluate()
        x = trainer._normal(trainer._pixels)
        with torch.no_grad():
            used.append(trainer.module.conv1(x).mean((0, 2, 3)).tolist())
        used.append(norm.running_mean.tolist())
        del trainer._score  # which holds the trainer
        if ranks.rank == 0:
            (FOLDER / f"{name}.json").write_text(json.dumps([*used, is_moved]))


def digits() -> None:
    """Three times over scikit-learn's digits, as the rate goes up and down, and those held out."""
    images = BASE.data
    assert isinstance(images, Images)
    init_ranks(config(1, "single"))
    trainer = VisionTrainer(
        config(1, "single"), open_gallery(images, project=FOLDER), ranks=Ranks()
    )  # fmt: skip
    ids = list(range(trainer._gallery.num_windows))
    for n in range(3):
        trainer.run(
            ids, progress=n / 3, progress_end=(n + 1) / 3, on_step=Steps(), stop=Never()
        )  # fmt: skip
    score = trainer.evaluate()
    (FOLDER / "digits.json").write_text(json.dumps([len(ids), score.tokens, score.accuracy]))
    trainer.close()


JOBS: list[tuple[str, int, Callable[[], None]]] = [
    ("learn", 1, learn),
    *([("digits", 1, digits)] if importlib.util.find_spec("sklearn") else []),
    *(
        (name, ranks, lambda name=name, kind=kind: law(name, kind))  # type: ignore[misc]
        for name, ranks, kind in (
            ("law-1", 1, "single"), ("law-3-ddp", 3, "ddp"), ("law-4-fsdp", 4, "fsdp"),
            ("law-8-ddp", 8, "ddp"),
        )
    ),
    ("recalibrate-1", 1, lambda: recalibrate("recalibrate-1", "single")),
    ("recalibrate-2", 2, lambda: recalibrate("recalibrate-2", "ddp")),
    ("write", 4, write),
    *(
        (name, ranks, lambda name=name, how=how: read(name, *how))  # type: ignore[misc]
        for name, ranks, *how in (
            ("read-1", 1, "single"), ("read-2", 2, "ddp"), ("read-3", 3, "fsdp"),
            ("read-8", 8, "fsdp"), ("again-2", 2, "ddp", "full"), ("again-3", 3, "fsdp", "full"),
        )
    ),
]  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("error")
    FOLDER, BASE = Path(sys.argv[1]), compose(WORDS)
    gc.collect()
    gc.freeze()
    codes = [(name, in_ranks(ranks, work)) for name, ranks, work in JOBS]
    (FOLDER / "codes.json").write_text(json.dumps(codes))
