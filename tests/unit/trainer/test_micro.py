"""Microbatches: a share in equal parts, nothing lost, padding at the end."""

import pytest
import torch
from tiny import SEQ_LEN, TinyCorpus

from pww.trainer.titan_micro import MicroLoader


def loader(rank: int, world: int, *, accumulate: int) -> MicroLoader:
    return MicroLoader(
        MicroLoader.Config(accumulate=accumulate), dp_world_size=world, dp_rank=rank,
        tokenizer=None, seq_len=SEQ_LEN, local_batch_size=8 // world // accumulate,
        snapshot_every_n_steps=None,
    )  # fmt: skip


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_the_parts_are_the_share(world: int, accumulate: int) -> None:
    corpus, ids = TinyCorpus(), list(range(40, 51))  # 8 and then 3: the second step is padded
    for rank in range(world):
        whole, parts = loader(rank, world, accumulate=1), loader(rank, world, accumulate=accumulate)
        for one in (whole, parts):
            one.assign(corpus, ids)
        shares, cut = list(whole), list(parts)
        assert len(cut) == accumulate * len(shares) == accumulate * 2
        assert {labels.shape for _, labels in cut} == {(8 // world // accumulate, SEQ_LEN)}
        assert torch.equal(torch.cat([y for _, y in cut]), torch.cat([y for _, y in shares]))
        assert torch.equal(
            torch.cat([x["input"] for x, _ in cut]), torch.cat([x["input"] for x, _ in shares])
        )
        assert parts.drawn == whole.drawn
