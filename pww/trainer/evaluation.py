"""Held-out loss of an engine: pooled over tokens, the same on any number of ranks, no trace left.

Which windows follows from the corpus and `evaluation.max_windows` alone: they are spread evenly
over the held-out part, and over all of another corpus, of which nothing is held out. Torchtitan's
own validator draws from a loader, averages over ranks and leaves parameters unsharded.
Import after `titan_cpu.install`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pww.errors import DataError
from pww.trainer.api import EvalResult, SetResult
from pww.trainer.ranks import Ranks
from pww.trainer.shards import reshard
from pww.trainer.titan_data import Corpus, my_slices, padded
from pww.trainer.titan_engine import Engine

Read = Callable[[Sequence[int]], Any]
"""Windows by id."""


def evaluate(
    engine: Engine,
    corpus: Corpus,
    sets: Mapping[str, Corpus],
    *,
    max_windows: int,
    batch: int,
    ranks: Ranks,
) -> EvalResult:
    """Collective: the loss over the held-out windows of `corpus`, and over those of every set.

    Raises:
        DataError: on every rank, if one of them cannot read its windows.
    """

    def loss(read: Read, there: int) -> tuple[float, int]:
        windows = spread(there, max_windows)
        return pooled_loss(engine, read, windows=windows, batch=batch, ranks=ranks)

    held_out, tokens = loss(corpus.held_out, corpus.manifest.num_held_out)
    return EvalResult(
        held_out,
        tokens,
        tuple(
            SetResult(name, *loss(other.windows, other.manifest.num_windows))
            for name, other in sets.items()
        ),
    )


def spread(there: int, most: int) -> list[int]:
    """At most `most` ids of `there`, evenly spaced from the first on."""
    num = min(most, there)
    return [i * there // num for i in range(num)]


def pooled_loss(
    engine: Engine, read: Read, *, windows: Sequence[int], batch: int, ranks: Ranks
) -> tuple[float, int]:
    """Collective: the mean loss over the tokens of these windows, and how many they are.

    Raises:
        DataError: on every rank, if one of them cannot read its windows.
    """
    seq_len = engine.config.training.seq_len
    slices = list(my_slices(windows, batch=batch, rank=ranks.rank, world=ranks.world))
    rows, fault = [], None
    try:
        rows = [read(ids) if len(ids) else None for ids in slices]
    except DataError as wrong:
        fault = wrong
    ranks.agree_on_fault(fault)
    total = _my_sum(engine, rows, share=batch // ranks.world, seq_len=seq_len)
    if ranks.world > 1:
        dist.all_reduce(total)
    tokens = len(windows) * seq_len
    return float(total.item()) / tokens, tokens


def _my_sum(engine: Engine, rows: Sequence[Any], *, share: int, seq_len: int) -> torch.Tensor:
    """The loss summed over this rank's tokens, fp64, on the device."""
    (model,) = engine.model_parts
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    model.eval()
    try:
        with torch.no_grad():
            for part in rows:
                inputs, labels = padded(part, batch=share, seq_len=seq_len)
                with engine.train_context():
                    logits = model(inputs["input"].to(engine.device))
                    loss, _ = engine.loss_fn(logits, labels.to(engine.device), None)
                total += loss.double()
                del logits, loss
    finally:
        model.train()
        reshard(model)
    return total
