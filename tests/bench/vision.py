"""Figures of DiLoCo inside one allocation: `python tests/bench/vision.py`.

    rounds=N batch=N steps=N    phases measured (4), images of a step (32), steps of a phase (25)

    images_vs_plain_ddp   images/s of our engine over those of a plain torch DDP loop on 2 ranks
    outer_overhead_h10    share of a phase of H inner steps that its outer step takes: ResNet-18,
    outer_overhead_h100   2 replicas, fp32 deltas; with the checkpoint that is durable after it
                          as outer_and_checkpoint_h100

Side by side: after each step of ours the plain loop takes one on the same ranks, with the same
model, images and optimiser; what ours does before and after a phase counts for ours. The median of
the phases' ratios counts. The CPU's images are not a GPU's: the ratio is what matters.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch._dynamo  # DDP would import it once in every rank
import torch.distributed as dist
from figures import figure, machine
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "programs"))

from forked import in_ranks
from tiny import Steps

from pww.allocate import collective_of
from pww.clock import SystemClock
from pww.config.load import compose
from pww.config.one_replica import of_one
from pww.config.schema import Config
from pww.data.images import Labelled
from pww.data.images.cifar import MEAN, STD
from pww.data.images.gallery import Gallery
from pww.replica.collective import Collective
from pww.replica.groups import join_ranks
from pww.smoke.phases import HORIZONS, Times, measured
from pww.trainer.pictures import augmented, normalized
from pww.trainer.resnet import resnet
from pww.trainer.vision import VisionTrainer

RANKS = 2


def gallery(num: int) -> Gallery:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (num, 3, 32, 32), dtype=np.uint8)
    images = Labelled(pixels, draw.integers(0, 10, num).astype(np.uint8), "noise")
    return Gallery(images, images, MEAN, STD, flip=True)


def plain_loop(batch: int, images: Gallery) -> Callable[[int], None]:
    """What anybody would write: takes the step with this number."""
    model = DistributedDataParallel(
        resnet("resnet18", classes=10, seed=0), forward_sync_buffers=False,
        gradient_as_bucket_view=True,
    )  # fmt: skip
    descent = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    pixels = torch.from_numpy(images.train.pixels)
    labels = torch.from_numpy(images.train.labels).long()
    rank, share = dist.get_rank(), batch // RANKS
    draw = torch.Generator().manual_seed(rank)

    def step(number: int) -> None:
        at = number * batch + rank * share
        x = augmented(pixels[at : at + share], draw=draw)
        logits = model(normalized(x, mean=MEAN, std=STD))
        nn.functional.cross_entropy(logits, labels[at : at + share]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
        descent.step()
        descent.zero_grad(set_to_none=True)

    return step


class Turns:
    """Asked before every step of ours whether to stop, it has the plain loop take that step first,
    and times it.
    """

    def __init__(self, plain: Callable[[int], None]) -> None:
        self._plain = plain
        self.seconds: list[float] = []

    def agreed(self) -> bool:
        """Never."""
        dist.barrier()
        began_s = perf_counter()
        self._plain(len(self.seconds))
        dist.barrier()
        self.seconds.append(perf_counter() - began_s)
        return False


def side_by_side(config: Config, folder: Path, rounds: int, steps: int) -> None:
    """Seconds of our engine's phases and of the plain loop's steps between."""
    place = join_ranks(config)
    torch.set_num_threads(1)
    batch = config.optim.batch_windows
    images = gallery(batch * steps)
    trainer = VisionTrainer(config, images, ranks=place.ranks)
    plain = plain_loop(batch, images)

    def phase(num: int) -> tuple[float, float]:
        turns = Turns(plain)
        began_s = perf_counter()
        trainer.run(range(num * batch), progress=0.4, progress_end=0.5, on_step=Steps(), stop=turns)
        dist.barrier()
        theirs = sum(turns.seconds)
        return perf_counter() - began_s - theirs, theirs

    phase(2)
    pairs = [phase(steps) for _ in range(rounds)]
    if place.is_first:
        (folder / "pairs.json").write_text(json.dumps(pairs))
    trainer.close()


def outer_step(config: Config, folder: Path, rounds: int, steps: int) -> None:
    """Seconds of an inner step, of the outer step and of what is made durable after it."""
    place, clock = join_ranks(config), SystemClock()
    torch.set_num_threads(1)
    batch = config.optim.batch_windows
    trainer = VisionTrainer(of_one(config), gallery(batch * steps), ranks=place.ranks)
    collective = collective_of(config, place, trainer, clock=clock)
    durable: list[float] = []

    def make_durable(number: int) -> None:
        began_s = perf_counter()
        save(trainer, collective, folder / f"{number}-{place.replica}")
        place.everyone.most(0)
        durable.append(perf_counter() - began_s)

    times = measured(
        trainer, collective, place, range(steps * batch), steps=steps, rounds=rounds, clock=clock,
        device=torch.device("cpu"), after=make_durable, progress=0.4,
    )  # fmt: skip
    if place.is_first:
        found = {**asdict(times), "durable": durable[1:]}  # the first one is warm-up
        (folder / "outer.json").write_text(json.dumps(found))
    trainer.close()


def save(trainer: Any, collective: Collective, folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir()
    trainer.save_inner(folder / "inner")
    rows = list(collective.whole("momentum", keep=True))
    save_file({name: theta for name, theta, _ in rows}, folder / "theta")
    save_file({name: momentum for name, _, momentum in rows}, folder / "momentum")


def main(words: list[str]) -> None:
    """Measures both on `RANKS` ranks of this machine."""
    options = {key: int(value) for key, value in (word.split("=", 1) for word in words)}
    rounds, batch = options.get("rounds", 4), options.get("batch", 32)
    steps, phase = 4, options.get("steps", 25)
    given = [
        "model=resnet18", "parallel=ddp", f"parallel.ranks={RANKS}",
        f"site.ranks_per_node={RANKS}", f"optim.batch_windows={batch}", "site.cores_per_rank=1",
        f"darl.block_windows={batch}", "metrics.every_steps=100", "optim.lr=0.01",
    ]  # fmt: skip
    one, two = compose(given), compose([*given, f"diloco.replicas={RANKS}"])
    print(f"{machine()}, torch {torch.__version__}, ResNet-18, {batch} images a step", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert not any(in_ranks(RANKS, lambda: side_by_side(one, folder, rounds, phase)))
        assert not any(in_ranks(RANKS, lambda: outer_step(two, folder, rounds, steps)))
        pairs = json.loads((folder / "pairs.json").read_text())
        found = json.loads((folder / "outer.json").read_text())
    ratio = median(plain / ours for ours, plain in pairs)
    figure("images_vs_plain_ddp", ratio, "ratio", ">= 0.99")
    figure("images_per_s", batch * phase / median(ours for ours, _ in pairs), "images/s", "none")
    durable = median(found.pop("durable"))
    times = Times(**found)
    inner, outer = median(times.inner), median(times.outer)
    figure("inner_step_ms", 1e3 * inner, "ms", "none")
    figure("outer_step_ms", 1e3 * outer, "ms", "none")
    for num in HORIZONS:
        figure(f"outer_overhead_h{num}", times.overhead(num), "share", "none")
    share = (outer + durable) / (100 * inner)
    figure("outer_and_checkpoint_h100", share, "share", "none")


if __name__ == "__main__":
    main(sys.argv[1:])
