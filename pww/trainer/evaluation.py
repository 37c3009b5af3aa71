"""Held-out loss of an engine: pooled over tokens, the same on any number of ranks, no trace left.

Torchtitan's own validator draws from a loader, averages over ranks and leaves parameters unsharded.
Import after `titan_cpu.install`.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from pww.errors import DataError
from pww.trainer.api import EvalResult
from pww.trainer.ranks import Ranks
from pww.trainer.shards import reshard
from pww.trainer.titan_data import Corpus, my_slices, padded
from pww.trainer.titan_engine import Engine


def held_out_loss(
    engine: Engine, corpus: Corpus, *, windows: Sequence[int], batch: int, ranks: Ranks
) -> EvalResult:
    """Collective: the loss over these held-out windows, `batch` at a time.

    Raises:
        DataError: on every rank, if one of them cannot read its windows.
    """
    seq_len = engine.config.training.seq_len
    slices = list(my_slices(windows, batch=batch, rank=ranks.rank, world=ranks.world))
    rows, fault = [], None
    try:
        rows = [corpus.held_out(ids) if len(ids) else None for ids in slices]
    except DataError as wrong:
        fault = wrong
    ranks.agree_on_fault(fault)
    (model,) = engine.model_parts
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    model.eval()
    try:
        with torch.no_grad():
            for part in rows:
                inputs, labels = padded(part, batch=batch // ranks.world, seq_len=seq_len)
                with engine.train_context():
                    logits = model(inputs["input"].to(engine.device))
                    loss, _ = engine.loss_fn(logits, labels.to(engine.device), None)
                total += loss.double()
                del logits, loss
    finally:
        model.train()
        reshard(model)
    if ranks.world > 1:
        dist.all_reduce(total)
    tokens = len(windows) * seq_len
    return EvalResult(loss=float(total.item()) / tokens, tokens=tokens)
