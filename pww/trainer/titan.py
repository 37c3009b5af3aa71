"""The engine of a replica: torchtitan's Trainer behind `api.Trainer`, driven H steps at a time.

Everything that knows torchtitan is in `titan_*.py`, imported only once a trainer is built: what is
imported first decides which device torchtitan drives.
"""

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import nn

from pww.clock import Clock, SystemClock
from pww.config.schema import Config
from pww.trainer import inner_copy, inner_state, memory, shards
from pww.trainer.api import EvalResult, PhaseResult, StepHook, Stop
from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.schedule import phase_lrs
from pww.trainer.titan_config import check, engine_config
from pww.trainer.titan_cpu import install, unwarned

if TYPE_CHECKING:
    from pww.trainer.titan_data import Corpus

__all__ = ["TitanTrainer", "init_ranks"]


class TitanTrainer:
    """Implements `api.Trainer`. Its weights start at theta(0), which follows from `config.seed`.

    Raises:
        ConfigError: the configuration does not fit the ranks or the model.
        DataError: the corpus does not fit the model.
        TrainerError: no such device.
    """

    def __init__(
        self,
        config: Config,
        corpus: "Corpus",
        *,
        ranks: Ranks,
        clock: Clock = SystemClock(),
        sets: "Mapping[str, Corpus]" = MappingProxyType({}),
    ) -> None:
        """`sets`: other corpora with the same tokenizer and length, to be evaluated by name."""
        check(config, corpus.manifest, num_ranks=ranks.world)
        install(config.site.device)
        if config.site.device == "cpu":
            torch.set_num_threads(config.site.cores_per_rank)
        self._config, self._corpus, self._ranks, self._clock = config, corpus, ranks, clock
        self._sets = sets
        scratch = tempfile.mkdtemp(
            prefix="pww-titan-"
        )  # torchtitan wants a folder and writes nothing
        try:
            with unwarned():
                self._engine = engine_config(
                    config,
                    padded_vocab=corpus.manifest.padded_vocab,
                    num_ranks=ranks.world,
                    scratch=scratch,
                ).build()
        finally:
            shutil.rmtree(scratch)
        (self._model,) = self._engine.model_parts

    @property
    def step(self) -> int:
        """Inner steps taken over the whole run."""
        return int(self._engine.step)

    @property
    def module(self) -> nn.Module:
        """The live, sharded model: what replicas of one allocation take the outer step on."""
        model: nn.Module = self._model
        return model

    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Full shape of every parameter, in the order of `tensors`. Not collective."""
        return {name: tuple(p.shape) for name, p in shards.parameters(self._model)}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter in full, a copy on its device; empty tensors on ranks other than 0."""
        shards.reshard(self._model)
        for name, parameter in shards.parameters(self._model):
            yield name, shards.gather(parameter, keep=self._ranks.rank == 0)

    def load(self, theta: Path) -> None:
        """Writes a safetensors file into the shards, bit for bit; the optimiser state stays."""
        shards.load(theta, self._model, ranks=self._ranks)

    def run(
        self,
        windows: Sequence[int],
        *,
        progress: float,
        progress_end: float,
        on_step: StepHook,
        stop: Stop,
    ) -> PhaseResult:
        """Trains on exactly `windows`; see `api.Trainer.run`."""
        from pww.trainer.titan_engine import collected_by_hand

        engine, batch = self._engine, self._config.optim.batch_windows
        seq_len, every = self._config.model.seq_len, self._config.metrics.every_steps
        steps = -(-len(windows) // batch)
        engine.dataloader.assign(self._corpus, windows)
        engine.lr_schedulers.assign(phase_lrs(progress, progress_end, steps, self._config.optim))
        memory.forget_peak(engine.device)
        started = self._clock.monotonic()
        batches = iter(engine.dataloader)
        done = reported = 0  # steps; tokens that were in the last report
        loss_sum = 0.0
        tokens = 0
        with collected_by_hand():
            while done < steps and not stop.agreed():
                lr = engine.lr_schedulers.lr
                engine.next_step(batches)
                done += 1
                tokens = min(done * batch, len(windows)) * seq_len
                if engine.step % every and done < steps:
                    continue
                part = engine.take_loss()
                loss_sum += part
                if self._ranks.rank == 0:
                    on_step(
                        step=engine.step,
                        done=done,
                        of=steps,
                        loss=part / (tokens - reported),
                        tokens=tokens,
                        lr=lr,
                    )
                reported = tokens
        if reported < tokens:
            loss_sum += engine.take_loss()
        return PhaseResult(
            steps=done,
            tokens=tokens,
            loss=loss_sum / tokens if tokens else math.nan,
            seconds=self._clock.monotonic() - started,
            drawn=self._drawn(),
            stopped=done < steps,
            flops_per_token=float(max(engine.metrics_processor.num_flops_per_token, 0)),
            memory_bytes=self._ranks.most(memory.peak(engine.device)),
        )

    def _drawn(self) -> tuple[int, ...]:
        """Collective: what all loaders fetched, sorted; () on ranks other than 0."""
        per_rank = self._ranks.gather(list(self._engine.dataloader.drawn))
        return tuple(sorted(i for ids in per_rank for i in ids))

    def expect(self, windows: Sequence[int]) -> None:
        """Has this rank's part of `windows` read ahead."""
        self._engine.dataloader.expect(self._corpus, windows)

    def evaluate(self) -> EvalResult:
        """Loss over at most `evaluation.max_windows` windows of each corpus; changes no state."""
        from pww.trainer.evaluation import evaluate

        return evaluate(
            self._engine,
            self._corpus,
            self._sets,
            max_windows=self._config.evaluation.max_windows,
            # as many windows together as in training, for which there is memory
            batch=self._engine.config.training.local_batch_size * self._ranks.world,
            ranks=self._ranks,
        )

    def save_inner(self, folder: Path) -> None:
        """Writes optimiser, step and RNG state into `folder`."""
        inner_state.save(folder, self._engine.optimizers, step=self.step, ranks=self._ranks)

    def copy_inner(self) -> inner_copy.InnerFiles:
        """The same state in memory."""
        return inner_copy.copied(self._engine.optimizers, step=self.step, ranks=self._ranks)

    def load_inner(self, folder: Path) -> None:
        """Restores what `save_inner` wrote, on any number of ranks."""
        self._engine.step = inner_state.load(folder, self._engine.optimizers, ranks=self._ranks)

    def reset_inner(self) -> None:
        """Forgets the optimiser state; the step count stays."""
        inner_state.reset(self._engine.optimizers)

    def close(self) -> None:
        """Lets go of everything sharded, then ends the process groups; safe to call twice."""
        if hasattr(self, "_engine"):
            self._engine.close()
            self._engine.__dict__.clear()
            del self._engine, self._model
        self._ranks.close()
