"""smoke_ranks.py FOLDER: smoke tests of real ranks, some with a fault; FOLDER/ended.json.

Each is a run folder FOLDER/NAME with what its ranks left. Faults are put into the ranks' processes,
after the fork and before their first line; nothing starts them again or ends them from outside.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # DDP and FSDP2 would import it once in every rank
import torch.distributed as dist
from forked import in_ranks
from tiny import TinyCorpus, tiny_config

from pww import engine
from pww.config import paths
from pww.config.load import compose
from pww.config.one_replica import of_one
from pww.config.schema import Config
from pww.data.images import Labelled, gallery
from pww.errors import DataError
from pww.replica.blocks import Blocks
from pww.replica.circle import Circle
from pww.replica.collective import Collective
from pww.smoke import disk, phases, rank, reduce, watch
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_cpu import install
from pww.trainer.vision import VisionTrainer
from pww.transport.tensorfile import TensorReader

SMALL = (
    "model=resnet_digits", "parallel=ddp", "optim.batch_windows=8", "darl.block_windows=8",
    "site.cores_per_rank=1",
)  # fmt: skip


def images(ranks: int, replicas: int, *more: str) -> Config:
    return compose(
        [*SMALL, f"parallel.ranks={ranks}", f"diloco.replicas={replicas}", *more]
    )  # fmt: skip


def language(ranks: int, replicas: int, kind: str) -> Config:
    return tiny_config(
        {
            "parallel.kind": kind, "parallel.ranks": ranks, "parallel.shard_ranks": ranks,
            "diloco.replicas": replicas, "site.ranks_per_node": ranks, "site.ranks": ranks,
            "codec": compose(["codec=int8"]).codec.model_dump(),
        }
    )  # fmt: skip


def noise(*_: object, **__: object) -> gallery.Gallery:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (64, 1, 8, 8), dtype=np.uint8)
    made = Labelled(pixels, draw.integers(0, 10, 64).astype(np.uint8), "noise")
    return gallery.Gallery(made, made, gallery.MEAN, gallery.STD, flip=False)


# ------------------------------------------------------------------------------------------ faults


def fails(of: object, name: str, instead: Callable[..., Any]) -> None:
    """`of.name` is `instead(the real one)` in this process."""
    setattr(of, name, instead(getattr(of, name)))


def dies() -> None:
    fails(disk, "check", lambda real: lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def hangs() -> None:
    fails(disk, "check", lambda real: lambda *_: time.sleep(300))


def wrong_sum() -> None:
    """One value of one rank's sum, by one unit in the last place."""

    def instead(real: Callable[..., None]) -> Callable[..., None]:
        def summed(group: dist.ProcessGroup, tensor: torch.Tensor) -> None:
            real(group, tensor)
            if group.size() > 1:
                tensor[-1] = torch.nextafter(tensor[-1], torch.tensor(math.inf))

        return summed

    fails(reduce, "summed", instead)


def wrong_exchange() -> None:
    """What the other replica says reaches this one twice as large."""

    def instead(real: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
        def gather(self: Circle, mine: torch.Tensor) -> list[torch.Tensor]:
            rows = real(self, mine)
            return [row * 2 for row in rows] if mine.dtype == torch.float32 else rows

        return gather

    fails(Circle, "gather", instead)


def crossed() -> None:
    """Replica 0 takes itself for replica 1, and the other way round."""
    fails(Blocks, "replica", lambda real: lambda self, rank: 1 - real(self, rank))


def misread() -> None:
    """One bit of one value."""

    def instead(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def get(self: TensorReader, name: str) -> torch.Tensor:
            found = real(self, name).clone()
            found.view(-1).view(torch.int32)[5] ^= 1
            return found

        return get

    fails(TensorReader, "get", instead)


def breaks() -> None:
    def instead(real: object) -> Callable[..., None]:
        def check(*_: object) -> None:
            raise ZeroDivisionError("the driver is broken")

        return check

    fails(disk, "check", instead)


def goes_to_nan() -> None:
    fails(
        VisionTrainer, "_step",
        lambda real: lambda self, *a, **b: real(self, *a, **b) * math.nan,
    )  # fmt: skip


def drifts() -> None:
    """The outer step is right, and then a weight moves."""

    def instead(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Collective, *a: Any, **b: Any) -> Any:
            report = real(self, *a, **b)
            if self.round > 1:
                next(iter(self._model.parameters())).data.view(-1)[0] += 1e-6
            return report

        return step

    fails(Collective, "step", instead)


def no_images() -> None:
    def instead(real: object) -> Callable[..., None]:
        def opened(*_: object, **__: object) -> None:
            raise DataError("there are no images here")

        return opened

    fails(gallery, "open_gallery", instead)


RIGHT: dict[str, tuple[Config, int]] = {
    "fsdp": (language(4, 2, "fsdp"), 4),
    "four": (images(4, 4), 4),
    "one": (images(2, 1), 2),
}
FAULTS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (dies, hangs, wrong_sum, wrong_exchange, crossed, misread, breaks, goes_to_nan,
              drifts, no_images)
}  # fmt: skip
EVERYWHERE = (crossed,)
"""Faults of all ranks; the others are of rank 1 alone."""


def tested(folder: Path, name: str, config: Config, ranks: int) -> dict[str, Any]:
    run = folder / name
    run.mkdir()
    paths.freeze(config, run)
    fault = FAULTS.get(name)

    def work() -> None:
        if fault is not None and (fault in EVERYWHERE or os.environ["RANK"] == "1"):
            fault()
        os._exit(rank.main([str(run)]))

    began_s = time.monotonic()
    codes = in_ranks(ranks, work)
    return {"codes": codes, "seconds": time.monotonic() - began_s}


def main(folder: Path) -> None:
    install("cpu")
    gallery.open_gallery = noise
    engine._text = lambda config, place, made: (
        TinyCorpus().manifest,
        lambda: TitanTrainer(of_one(config), TinyCorpus(), ranks=place.ranks),
    )
    watch.BOUNDS_S = dict.fromkeys(watch.BOUNDS_S, 60.0) | {"checkpoint": 4.0}
    watch.MOMENT_S = 1.0
    phases.STEPS, phases.ROUNDS = 2, 1
    ended = {name: tested(folder, name, config, ranks) for name, (config, ranks) in RIGHT.items()}
    pair = images(2, 2)
    ended |= {name: tested(folder, name, pair, 2) for name in FAULTS}
    (folder / "ended.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
