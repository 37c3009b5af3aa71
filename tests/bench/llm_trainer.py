"""Tokens a second of a phase of ours against torchtitan's own loop: same model, batch and windows.

Two trainers in one process take turns, so whatever else the machine does meets both. The model is
the smallest of ours: a step takes a hundredth of a second, so all that is not the model shows.
torchtitan's loop is `Trainer.train` without its last two seconds of sleep and the call that its
torch has not got; it logs every ten steps, as we report. `python tests/bench/llm_trainer.py`.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from figures import figure

from pww.config.load import compose
from pww.config.schema import Config
from pww.trainer.titan_cpu import install, unwarned

STEPS = 40
PAIRS = 11
GOAL = ">= 0.99"


class Manifest:
    """A corpus that never ends."""

    num_windows, num_held_out, vocab_size, padded_vocab = 1_000_000, 8, 4096, 4096

    def __init__(self, seq_len: int) -> None:
        self.window_tokens = seq_len + 1


class Corpus:
    """Windows from memory."""

    def __init__(self, seq_len: int) -> None:
        self.manifest = Manifest(seq_len)
        random = np.random.default_rng(1)
        self._rows = random.integers(0, 4096, (4096, seq_len + 1), dtype=np.uint16)

    def windows(self, ids: Sequence[int]) -> "np.ndarray[Any, Any]":
        """The windows with these ids."""
        return self._rows[np.asarray(ids) % len(self._rows)]

    held_out = windows


class Never:
    """A stop that nobody asks for."""

    def agreed(self) -> bool:
        """Never."""
        return False


def torchtitans(config: Config, corpus: Corpus) -> Any:
    """Torchtitan's own Trainer on our model and loader, with its own metrics and rates."""
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import LRSchedulersContainer
    from torchtitan.distributed import ParallelDims
    from torchtitan.trainer import Trainer

    from pww.trainer.titan_config import engine_config

    ours = engine_config(
        config, padded_vocab=corpus.manifest.padded_vocab, num_ranks=1, scratch="/tmp"
    )
    values = {f.name: getattr(ours, f.name) for f in fields(Trainer.Config) if f.init}
    values |= {
        "metrics": MetricsProcessor.Config(log_freq=10, disable_color_printing=True),
        "lr_scheduler": LRSchedulersContainer.Config(warmup_steps=2),
    }

    class Own(Trainer):  # type: ignore[misc]
        """With the process group that is there already."""

        def init_distributed(self) -> Any:
            """Only the mesh."""
            return ParallelDims.from_config(self.config.parallelism, 1)

    with unwarned():
        return Own(Trainer.Config(**values))


def their_phase(trainer: Any, corpus: Corpus, ids: Sequence[int], steps: int) -> None:
    """`Trainer.train`, of `steps` steps."""
    trainer.dataloader.assign(corpus, ids)
    batches = trainer.batch_generator(trainer.dataloader)
    for _ in range(steps):
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(batches)
        trainer.checkpointer.save(trainer.step, last_step=False)


def tokens_vs_torchtitan(*, steps: int = STEPS, pairs: int = PAIRS) -> float:
    """Prints the figures; returns the ratio of rates by CPU time, the median of pairs of phases."""
    from pww.trainer.ranks import Ranks, init_ranks
    from pww.trainer.titan import TitanTrainer

    os.environ.setdefault("LOCAL_RANK", "0")
    config = compose(["parallel=single", "site.cores_per_rank=1", "metrics.every_steps=10"])
    install("cpu")
    init_ranks(config)
    corpus = Corpus(config.model.seq_len)
    ours = TitanTrainer(config, corpus, ranks=Ranks())
    theirs = torchtitans(config, corpus)
    batch = config.optim.batch_windows
    ids = list(range(steps * batch))

    def our_phase() -> None:
        ours.run(ids, progress=0.3, progress_end=0.4, on_step=lambda **row: None, stop=Never())

    wall: list[float] = []
    cpu: list[float] = []
    took: dict[str, tuple[float, float]] = {}
    for pair in range(-1, pairs):  # the first warms up
        turns = [("ours", our_phase), ("theirs", lambda: their_phase(theirs, corpus, ids, steps))]
        for name, turn in turns if pair % 2 else turns[::-1]:
            before = time.perf_counter(), time.process_time()
            turn()
            took[name] = time.perf_counter() - before[0], time.process_time() - before[1]
        if pair >= 0:
            wall.append(took["theirs"][0] / took["ours"][0])
            cpu.append(took["theirs"][1] / took["ours"][1])
    rate = steps * batch * config.model.seq_len / took["ours"][0]
    ratio = statistics.median(cpu)
    figure("tokens_vs_torchtitan", ratio, "x (by CPU time)", GOAL)
    figure("tokens_vs_torchtitan_wall", statistics.median(wall), "x (by the clock)", GOAL)
    figure("tokens_per_s", rate, "tokens/s of the smallest model on one core", "-")
    theirs.close()
    ours.close()
    return ratio


if __name__ == "__main__":
    tokens_vs_torchtitan()
