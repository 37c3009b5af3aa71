"""The engine of a replica that looks at images: a ResNet behind `api.Trainer`, H steps at a time.

DDP, FSDP2 or one rank; fp32 masters, bf16 by autocast. Windows are ids of images. Every rank takes
the same number of steps: a short last batch is spread, and a rank without an image of its own runs
image 0 with weight 0. Gradients are of the mean over the batch's images, on any number of ranks.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, assert_never

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pww.clock import Clock, SystemClock
from pww.config.schema import Config, ImageModel, Sgd
from pww.data.images.gallery import Gallery
from pww.errors import ConfigError
from pww.trainer import inner_copy, inner_state, memory, shards
from pww.trainer.accuracy import Score, score
from pww.trainer.api import EvalResult, PhaseResult, StepHook, Stop
from pww.trainer.pictures import augmented, normalized
from pww.trainer.ranks import Ranks
from pww.trainer.recompute import recompute
from pww.trainer.resnet import resnet, small_resnet
from pww.trainer.schedule import phase_lrs
from pww.trainer.statistics import agreed_buffers, are_finite, recalibrated, restore, snapshot
from pww.trainer.vision_state import Optimizers

CLASSES = 10
EVALUATED_TOGETHER = 256
RECALIBRATED_ON = 2048
"""Training images that statistics are estimated on: over 256 the noise costs points of accuracy."""
"""Images of a rank in one forward pass without gradients."""


class VisionTrainer:
    """Implements `api.Live`. Its weights start at theta(0), which follows from `config.seed`.

    Raises:
        ConfigError: the configuration does not fit the ranks.
    """

    def __init__(
        self, config: Config, gallery: Gallery, *, ranks: Ranks, replica: int = 0,
        clock: Clock = SystemClock(),
    ) -> None:  # fmt: skip
        """`replica`: which of the allocation; each moves and mirrors its images in its own way."""
        assert isinstance(config.model, ImageModel)
        assert isinstance(config.optim, Sgd)
        if config.parallel.ranks != ranks.world:
            raise ConfigError(
                [
                    f"parallel.ranks={config.parallel.ranks}, but {ranks.world} processes started: "
                    "start as many"
                ]
            )
        self._replica = replica
        self._config, self._ranks, self._clock, self._gallery = config, ranks, clock, gallery
        self._model_config, self._optim = config.model, config.optim
        if config.site.device == "cpu":
            torch.set_num_threads(config.site.cores_per_rank)
            self._device = torch.device("cpu")
        else:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._pixels = torch.from_numpy(gallery.train.pixels.copy())
        self._labels = torch.from_numpy(gallery.train.labels.copy())
        self.module = self._built()
        self._wrapped = self._shared(self.module)
        self._make_optimizer()
        self.step = 0

    def _built(self) -> nn.Module:
        seed, layers = self._config.seed, self._model_config.layers
        if layers == "small":
            model = small_resnet(classes=CLASSES, seed=seed)
        else:
            model = resnet(f"resnet{layers}", classes=CLASSES, seed=seed)
        if self._config.parallel.activation_checkpoint == "full":
            recompute(model.blocks())
        return model.to(self._device)

    def _shared(self, model: nn.Module) -> nn.Module:
        """What is called in a step. Running statistics are averaged at the end of a phase instead
        of before every step.
        """
        kind, world = self._config.parallel.kind, self._ranks.world
        if world == 1:
            return model
        match kind:
            case "single" | "ddp":
                # of 1x1 kernels, whose two layouts hold the same numbers in the same order
                warnings.filterwarnings("ignore", "Grad strides do not match bucket view")
                return DistributedDataParallel(
                    model, forward_sync_buffers=False, gradient_as_bucket_view=True
                )
            case "fsdp":
                fully_shard(model, mesh=init_device_mesh(self._device.type, (world,)))
                return model
            case "hsdp":
                shard = self._config.parallel.shard_ranks
                mesh = init_device_mesh(
                    self._device.type, (world // shard, shard), mesh_dim_names=("copies", "shards")
                )
                fully_shard(model, mesh=mesh)
                return model
            case _:
                assert_never(kind)

    def _make_optimizer(self) -> None:
        optim = self._optim
        self._descent = torch.optim.SGD(
            self.module.parameters(), lr=optim.lr, momentum=optim.momentum,
            nesterov=optim.momentum > 0, weight_decay=optim.weight_decay,
        )  # fmt: skip
        self._optimizers = Optimizers(self.module, self._descent)

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Full shape of every parameter, in the order of `tensors`. Not collective."""
        return {name: tuple(p.shape) for name, p in shards.parameters(self.module)}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter in full, a copy on its device; empty tensors on ranks other than 0."""
        shards.reshard(self.module)
        for name, parameter in shards.parameters(self.module):
            yield name, shards.gather(parameter, keep=self._ranks.rank == 0)

    def load(self, theta: Path) -> None:
        """Writes a safetensors file into the shards, bit for bit; the optimiser state stays."""
        shards.load(theta, self.module, ranks=self._ranks)

    def run(
        self,
        windows: Sequence[int],
        *,
        progress: float,
        progress_end: float,
        on_step: StepHook,
        stop: Stop,
    ) -> PhaseResult:
        """Trains on exactly `windows`; see `api.Trainer.run`.

        A phase that went to nan leaves the statistics that were there before it.
        """
        before = snapshot(self.module)
        batch, every = self._optim.batch_windows, self._config.metrics.every_steps
        steps = -(-len(windows) // batch)
        lrs = phase_lrs(progress, progress_end, steps, self._optim)
        memory.forget_peak(self._device)
        began_s = self._clock.monotonic()
        drawn: list[int] = []
        done = images = reported = 0
        told, pooled = torch.zeros((), dtype=torch.float64, device=self._device), 0.0
        while done < steps and not stop.agreed():
            ids = windows[done * batch : (done + 1) * batch]
            mine = self._share(len(ids))
            told += self._step(ids, mine, lr=lrs[done])
            drawn += ids[mine]
            self.step, done, images = self.step + 1, done + 1, images + len(ids)
            if self.step % every and done < steps:
                continue
            part = self._taken(told)
            pooled += part
            if self._ranks.rank == 0:
                on_step(
                    step=self.step, done=done, of=steps, loss=part / (images - reported),
                    tokens=images, lr=lrs[done - 1],
                )  # fmt: skip
            reported = images
        if reported < images:
            pooled += self._taken(told)
        agreed_buffers(self.module, ranks=self._ranks)
        if not are_finite(self.module, ranks=self._ranks):
            restore(self.module, before)
        return PhaseResult(
            steps=done,
            tokens=images,
            loss=pooled / images if images else math.nan,
            seconds=self._clock.monotonic() - began_s,
            drawn=tuple(sorted(id_ for ids in self._ranks.gather(drawn) for id_ in ids)),
            stopped=done < steps,
            memory_bytes=self._ranks.most(memory.peak(self._device)),
        )

    def expect(self, windows: Sequence[int]) -> None:
        """All images are in memory."""

    def _share(self, num: int) -> slice:
        """This rank's part of a batch; a short one is spread as evenly as it goes."""
        share, left = divmod(num, self._ranks.world)
        rank = self._ranks.rank
        start = rank * share + min(rank, left)
        return slice(start, start + share + (rank < left))

    def _step(self, ids: Sequence[int], mine: slice, *, lr: float) -> torch.Tensor:
        """One step over a batch, of which `mine` are here; the summed loss of those."""
        for group in self._descent.param_groups:
            group["lr"] = lr
        self._wrapped.train()
        pixels, labels = self._batch(ids, mine)
        is_idle = mine.stop == mine.start
        kept = snapshot(self.module) if is_idle else []
        with self._cast():
            logits = self._wrapped(pixels)
        loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
        loss = loss * float(not is_idle)
        # DDP and FSDP2 average over ranks; this is the mean over the images of all of them
        torch.autograd.backward(loss * (self._ranks.world / len(ids)))
        if is_idle:  # image 0 stood in for none of its own, and counts for nothing
            restore(self.module, kept)
        nn.utils.clip_grad_norm_(self.module.parameters(), self._optim.clip_norm)
        self._descent.step()
        self._descent.zero_grad(set_to_none=True)
        return loss.detach().double()

    def _batch(self, ids: Sequence[int], mine: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Images moved and mirrored by seed, replica, step and place in the batch: a resumed run,
        on however many ranks, draws the same.
        """
        chosen = torch.tensor(ids[mine] or ids[:1])
        first = min(mine.start, len(ids) - 1)
        text = f"{self._config.seed} {self._replica} {self.step}"
        pixels = self._moved(chosen, text, first=first, of=len(ids))
        return pixels, self._labels[chosen].long().to(self._device)

    def _moved(self, chosen: torch.Tensor, text: str, *, first: int, of: int) -> torch.Tensor:
        """These images as training sees them, drawn by `text`; see `augmented`."""
        digest = hashlib.sha256(text.encode()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        pixels = self._pixels[chosen].to(self._device)
        border = max(1, pixels.shape[2] // 8)  # 4 of CIFAR's 32, 1 of a digit's 8
        flip = self._gallery.flip
        return self._normal(
            augmented(pixels, draw=draw, border=border, flip=flip, first=first, of=of)
        )

    def _normal(self, pixels: torch.Tensor) -> torch.Tensor:
        gallery = self._gallery
        return normalized(pixels.to(self._device), mean=gallery.mean, std=gallery.std)

    def _cast(self) -> AbstractContextManager[Any]:
        if self._model_config.dtype == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _taken(self, told: torch.Tensor) -> float:
        """Collective: the loss summed over all images since it was taken last."""
        if self._ranks.world > 1:
            dist.all_reduce(told)
        total = float(told)
        told.zero_()
        return total

    def evaluate(self) -> EvalResult:
        """Loss and accuracy on the images that are measured on; changes no state."""
        if not self._config.diloco.recalibrate_bn:
            found = self._score()
        else:
            with recalibrated(self._wrapped, self._some(), ranks=self._ranks, cast=self._cast):
                found = self._score()
        return EvalResult(found.loss, found.count, accuracy=found.accuracy)

    def _score(self) -> Score:
        measured = self._gallery.measured
        num = min(self._config.evaluation.max_windows, len(measured))
        with self._cast():
            return score(
                self._wrapped, torch.from_numpy(measured.pixels[:num].copy()),
                torch.from_numpy(measured.labels[:num].copy()), batch=EVALUATED_TOGETHER,
                ranks=self._ranks, prepare=self._normal,
            )  # fmt: skip

    def _some(self) -> Iterator[torch.Tensor]:
        """Batches of training images, moved as in training, other ones on every rank.

        Of images as they are, the statistics are not those that the weights were trained with.
        """
        num = min(RECALIBRATED_ON, len(self._pixels))
        batch = max(min(EVALUATED_TOGETHER, num // self._ranks.world), 2)
        for number in range(max(num // (batch * self._ranks.world), 1)):
            start = (number * self._ranks.world + self._ranks.rank) * batch
            ids = torch.arange(start, start + batch) % len(self._pixels)
            yield self._moved(ids, f"{self._config.seed} statistics {start}", first=0, of=batch)

    def save_inner(self, folder: Path) -> None:
        """Writes optimiser, statistics, step and RNG state into `folder`."""
        inner_state.save(folder, self._optimizers, step=self.step, ranks=self._ranks)

    def copy_inner(self) -> inner_copy.InnerFiles:
        """The same state in memory."""
        return inner_copy.copied(self._optimizers, step=self.step, ranks=self._ranks)

    def load_inner(self, folder: Path) -> None:
        """Restores what `save_inner` wrote, on any number of ranks."""
        self.step = inner_state.load(folder, self._optimizers, ranks=self._ranks)

    def reset_inner(self) -> None:
        """Forgets the optimiser state; the step count stays."""
        inner_state.reset(self._optimizers)

    def close(self) -> None:
        """Lets go of everything sharded, then ends the process groups; safe to call twice."""
        for name in ("module", "_wrapped", "_descent", "_optimizers"):
            self.__dict__.pop(name, None)
        self._ranks.close()
