"""What DiLoCo costs a ResNet with BatchNorm, in accuracy: `python tests/bench/vision_study.py`.

    seeds=N     theta(0), order of the images and how they are moved (default 3)
    data=NAMES  of digits, cifar10; comma-separated (default both)
    steps=N     inner steps of each of two replicas, of 32 images (default 800)
    images=N    of CIFAR-10's training images (default 10000)
    keep=FILE   results as JSON lines: what is there with these settings is not trained again, what
                is trained is added, so that a study that is cut goes on (default: none)
    plot=FILE   the figure (default: beside `keep`, as .png)

Every arm takes the same steps over the same images in the same order, from the same theta(0): "ddp"
is torch's DDP on two ranks with 64 images a step and twice the learning rate, the others are two
replicas whose outer step is an allocation's (`replica.collective`), here between two threads. Each
is measured on held-out images with its own running statistics and with `recalibrate_bn`, which
changes the measuring only. The network is the small ResNet, with three channels for CIFAR-10.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "programs"))

import numpy as np
import torch
import torch._dynamo  # DDP would import it once in every rank
from figures import machine
from forked import in_ranks
from tiny import Never, Steps
from torch import nn
from vision_report import report
from vision_threads import Meeting, at_once

from pww.clock import SystemClock
from pww.config.load import compose
from pww.config.schema import Config, Images
from pww.data.images.gallery import Gallery, open_gallery
from pww.log import JsonLines, read_json_lines
from pww.replica.circle import Circle
from pww.replica.collective import Collective
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.resnet import small_resnet
from pww.trainer.vision import VisionTrainer

ROOT = Path(__file__).resolve().parents[2]
BATCH, LR, REPLICAS = 32, 0.05, 2
FEDAVG = ["diloco.outer.optimizer=sgd", "diloco.outer.lr=1.0", "diloco.outer.momentum=0.0"]
NESTEROV = ["diloco.outer.optimizer=nesterov", "diloco.outer.lr=0.7", "diloco.outer.momentum=0.9"]
ARMS: dict[str, tuple[list[str], int]] = {  # words, and H; 0: no outer loop
    "ddp": ([], 0),
    "fedavg_h25": (FEDAVG, 25),
    "fedavg_h100": (FEDAVG, 100),
    "nesterov_h25": (NESTEROV, 25),
    "nesterov_h100": (NESTEROV, 100),
}
DEFAULTS = {"seeds": "3", "data": "digits,cifar10", "steps": "800", "images": "10000"}


@dataclass(frozen=True)
class Result:
    """One run, measured twice."""

    accuracy: float  # with the running statistics that training left
    recalibrated: float
    loss: float  # held-out, nats
    recalibrated_loss: float
    agreement: float  # mean over outer steps; 1 for DDP
    images: int  # trained on
    measured: int  # images of one measurement
    cpu_s: float  # of all ranks
    wall_s: float


class Engine(VisionTrainer):
    """With as many channels as the images have, and a choice of statistics."""

    def _built(self) -> nn.Module:
        channels = self._gallery.train.pixels.shape[1]
        return small_resnet(classes=10, seed=self._config.seed, channels=channels)

    def measured(self, *, recalibrate: bool) -> tuple[float, float]:
        """Accuracy and loss."""
        diloco = self._config.diloco.model_copy(update={"recalibrate_bn": recalibrate})
        self._config = self._config.model_copy(update={"diloco": diloco})
        found = self.evaluate()
        return found.accuracy, found.loss


def config_of(data: str, *, ranks: int, images: int, seed: int, words: list[str]) -> Config:
    """The digits' configuration; the images of CIFAR-10 are put in beside it."""
    kind = "ddp" if ranks > 1 else "single"
    config = compose([
        "model=resnet_digits", f"parallel={kind}", f"parallel.ranks={ranks}", "site=local",
        f"site.ranks_per_node={ranks}", "site.cores_per_rank=1", f"seed={seed}",
        f"optim.lr={LR * ranks}", f"optim.batch_windows={BATCH * ranks}",
        f"darl.block_windows={BATCH}", "metrics.every_steps=100", "evaluation.max_windows=5000",
        *words,
    ])  # fmt: skip
    if data == "digits":
        return config
    other = compose(["model=resnet18", f"data={data}", f"data.max_images={images}"]).data
    return config.model_copy(update={"data": other})


def order(num: int, *, steps: int, seed: int) -> list[list[int]]:
    """The images of each step of both replicas: all of them once, then again in another order."""
    draw, ids = np.random.default_rng(seed), []
    while len(ids) < steps * BATCH * REPLICAS:
        ids += draw.permutation(num).tolist()
    each = BATCH * REPLICAS
    return [ids[at : at + each] for at in range(0, steps * each, each)]


def train_ddp(config: Config, gallery: Gallery, batches: list[list[int]]) -> dict[str, Any]:
    """One rank's run."""
    trainer = Engine(config, gallery, ranks=Ranks())
    ids = [id_ for batch in batches for id_ in batch]
    trainer.run(ids, progress=0.0, progress_end=1.0, on_step=Steps(), stop=Never())
    return ended(trainer, [1.0])


def train_replicas(
    config: Config, gallery: Gallery, batches: list[list[int]], phase: int
) -> dict[str, Any]:
    """All replicas, one after the other; at the end of each phase they meet."""
    engines = [Engine(config, gallery, ranks=Ranks()) for _ in range(REPLICAS)]
    cpu, clock = torch.device("cpu"), SystemClock()
    circles = [Circle(seat, device=cpu) for seat in Meeting(REPLICAS).seats()]

    def collective(place: int) -> Collective:
        return Collective(
            engines[place].module, inner=Circle(None, device=cpu), outer=circles[place],
            diloco=config.diloco, clock=clock,
        )  # fmt: skip

    outer = at_once([lambda place=place: collective(place) for place in range(REPLICAS)])
    agreement = []
    for start in range(0, len(batches), phase):
        part = batches[start : start + phase]
        tokens = []
        for place, engine in enumerate(engines):
            ids = [id_ for batch in part for id_ in batch[place * BATCH : (place + 1) * BATCH]]
            done = engine.run(
                ids, progress=start / len(batches), progress_end=(start + len(part)) / len(batches),
                on_step=Steps(), stop=Never(),
            )  # fmt: skip
            tokens.append(done.tokens)
        partial = len(part) < phase
        told = at_once([
            lambda one=one, num=num, partial=partial: one.step(num, partial=partial)
            for one, num in zip(outer, tokens, strict=True)
        ])  # fmt: skip
        agreement.append(told[0].agreement)
    return ended(engines[0], agreement)


def ended(engine: Engine, agreement: list[float]) -> dict[str, Any]:
    """Collective: what the run came to."""
    accuracy, loss = engine.measured(recalibrate=False)
    again, other = engine.measured(recalibrate=True)
    return {
        "accuracy": accuracy, "recalibrated": again, "loss": loss, "recalibrated_loss": other,
        "agreement": float(np.mean(agreement)), "measured": len(engine._gallery.measured),
    }  # fmt: skip


def measure(arm: str, data: str, gallery: Gallery, *, seed: int, steps: int, images: int) -> Result:
    """Trains one arm in processes of its own."""
    words, phase = ARMS[arm]
    ranks = 1 if phase else REPLICAS
    config = config_of(data, ranks=ranks, images=images, seed=seed, words=words)
    batches = order(gallery.num_windows, steps=steps, seed=seed)
    read, write = os.pipe()

    def work() -> None:
        init_ranks(config)
        torch.set_num_threads(1)
        found = (
            train_replicas(config, gallery, batches, phase)
            if phase
            else train_ddp(config, gallery, batches)
        )
        told = {"cpu_s": process_time(), **found}
        os.write(write, (json.dumps(told) + "\n").encode())  # short: one write is whole

    began_s = perf_counter()
    codes = in_ranks(ranks, work)
    if any(codes):
        sys.exit(f"{arm} on {data} with seed {seed} failed: {codes}")
    os.close(write)
    with os.fdopen(read) as lines:
        rows = [json.loads(line) for line in lines]
    cpu_s = sum(row.pop("cpu_s") for row in rows)
    return Result(
        **rows[0] | {"measured": min(rows[0]["measured"], 5000)},
        images=steps * BATCH * REPLICAS, cpu_s=round(cpu_s, 1),
        wall_s=round(perf_counter() - began_s, 1),
    )  # fmt: skip


class Kept:
    """Results by arm, data, seed and settings, in a file of whole lines."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, key: Mapping[str, object]) -> Result | None:
        """The result that is there."""
        for row in [] if self._path is None else read_json_lines(self._path):
            if all(row.get(name) == value for name, value in key.items()):
                return Result(**row["result"])  # type: ignore[arg-type]
        return None

    def add(self, key: Mapping[str, object], result: Result) -> None:
        """Durable when it returns."""
        if self._path is None:
            return
        lines = JsonLines(self._path)
        lines.write({**key, "result": asdict(result)}, durable=True)
        lines.close()


def gallery_of(data: str, images: int) -> Gallery:
    """What is trained on and measured by."""
    config = config_of(data, ranks=1, images=images, seed=0, words=[])
    assert isinstance(config.data, Images)
    return open_gallery(config.data, project=ROOT)


def main(words: list[str]) -> None:
    """Runs what is not kept, seed by seed; then a table, its meaning in words, and a figure."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(set(given) - {*DEFAULTS, "keep", "plot"}):
        sys.exit(f"unknown words {unknown}: there are {sorted({*DEFAULTS, 'keep', 'plot'})}")
    asked = {**DEFAULTS, **given}
    kept_in = Path(asked["keep"]) if asked.get("keep") else None
    plot = asked.get("plot") or (kept_in and str(kept_in.with_suffix(".png")))
    kept, steps, images = Kept(kept_in), int(asked["steps"]), int(asked["images"])
    print(json.dumps({"machine": machine(), "torch": torch.__version__, **asked}), flush=True)
    sets = asked["data"].split(",")
    found: dict[tuple[str, str], list[Result]] = {}
    galleries: dict[str, Gallery] = {}
    for seed in range(int(asked["seeds"])):
        for data in sets:
            for arm in ARMS:
                settings = {"steps": steps, "batch": BATCH, "lr": LR}
                settings |= {} if data == "digits" else {"images": images}
                key = {"arm": arm, "data": data, "seed": seed, "settings": settings}
                result = kept.get(key)
                if result is None:
                    if data not in galleries:
                        galleries[data] = gallery_of(data, images)
                    result = measure(
                        arm, data, galleries[data], seed=seed, steps=steps, images=images
                    )
                    kept.add(key, result)
                    print(json.dumps({**key, **asdict(result)}), flush=True)
                found.setdefault((data, arm), []).append(result)
    print(report(found, plot=Path(plot) if plot else None))


if __name__ == "__main__":
    main(sys.argv[1:])
