"""Four ranks stop in the middle of a phase; 2, 3 or 8 go on: every window is trained on once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pww.config.load import compose
from pww.data.shards import Shards, ShardWriter
from pww.errors import ConfigError
from pww.lease.space import BlockSpace
from pww.replica.plan import PhasePlan
from pww.trainer.titan_data import WindowLoader
from pww.wire import Lease, Span

SEQ_LEN, BATCH, WINDOWS, BLOCK = 16, 24, 997, 6


class Tokenised:
    """Real shards, each window's tokens its own number: what was trained on can be read off."""

    def __init__(self, folder: Path) -> None:
        width = SEQ_LEN + 1
        with ShardWriter(
            folder, stem="train", window_tokens=width, dtype="uint16", shard_bytes=100 * width * 2
        ) as writer:
            writer.add(np.repeat(np.arange(WINDOWS, dtype=np.uint32), width))
            shards = writer.finish()
        assert len(shards) == 10
        self.windows = Shards(
            folder, shards, window_tokens=width, dtype="uint16", what="training"
        ).read


@pytest.fixture
def plan() -> PhasePlan:
    space = BlockSpace(
        num_windows=WINDOWS, block_windows=BLOCK, seed=5, epochs=1, window_tokens=SEQ_LEN + 1,
        corpus="0" * 64,
    )  # fmt: skip
    return PhasePlan(space, inner_steps=4, batch_windows=BATCH)


def leases(plan: PhasePlan) -> list[Lease]:
    """One phase after the other, over everything."""
    step, end = plan.num_blocks, plan.space.num_positions
    spans = [Span(start=at, stop=min(at + step, end)) for at in range(0, end, step)]
    return [
        Lease(id=i, replica="local/a", span=span, watermark=span.stop, ttl_s=900.0)
        for i, span in enumerate(spans)
    ]


def trained(
    corpus: Tokenised, ids: list[int], *, world: int, stop_after: int | None = None
) -> list[int]:
    """The windows whose labels count, of all ranks, step by step in step with each other."""
    loaders = [
        WindowLoader(
            WindowLoader.Config(), dp_world_size=world, dp_rank=rank, tokenizer=None,
            seq_len=SEQ_LEN, local_batch_size=BATCH // world, snapshot_every_n_steps=None,
        )
        for rank in range(world)
    ]  # fmt: skip
    for loader in loaders:
        loader.assign(corpus, ids)
    seen: list[int] = []
    for step, batches in enumerate(zip(*loaders, strict=True)):  # as many steps on every rank
        if step == stop_after:
            break
        for inputs, labels in batches:
            assert labels.shape == (BATCH // world, SEQ_LEN)
            real = labels[labels[:, 0] >= 0]
            assert (real == real[:, :1]).all()
            assert (inputs["input"][: len(real)] == real).all()
            seen += real[:, 0].tolist()
    if stop_after is None:  # what a loader says that it drew is what was trained on
        assert sorted(i for loader in loaders for i in loader.drawn) == sorted(seen)
    return seen


@pytest.mark.parametrize("again", [2, 3, 8])
@pytest.mark.parametrize(("phase", "step"), [(0, 1), (4, 3), (10, 0)])
def test_what_is_left_is_trained_on_once_by_another_number_of_ranks(
    tmp_path: Path, plan: PhasePlan, again: int, phase: int, step: int
) -> None:
    corpus, line = Tokenised(tmp_path), leases(plan)
    assert len(line) == 11
    merged: list[int] = []
    for lease in line[:phase]:
        merged += trained(corpus, plan.windows(lease), world=4)
    dropped = trained(corpus, plan.windows(line[phase]), world=4, stop_after=step)
    assert len(dropped) == step * BATCH  # in no delta: the lease is trained on again, all of it
    rest: list[int] = []
    for lease in line[phase:]:
        rest += trained(corpus, plan.windows(lease), world=again)
    assert not set(merged) & set(rest)
    assert set(dropped) <= set(rest)
    assert Counter(merged + rest) == Counter(range(WINDOWS))


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("num", [1, 5])
def test_fewer_windows_than_a_step_reach_every_rank_as_one_step(
    tmp_path: Path, num: int, world: int
) -> None:
    ids = [300 + i for i in range(num)]
    assert sorted(trained(Tokenised(tmp_path), ids, world=world)) == ids


def test_a_number_of_ranks_that_cannot_share_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optim.batch_windows=24: must be a multiple of") as why:
        compose(
            ["optim.batch_windows=24", "parallel.ranks=5", "diloco.inner_steps=4",
             "darl.block_windows=6"]
        )  # fmt: skip
    assert "parallel.ranks=5; for example 25" in str(why.value)
