"""One rank in this process, and the small run that tests and their programs share."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "integration" / "programs"))

from tiny import TinyCorpus, tiny_config

from pww.trainer.ranks import Ranks, init_ranks
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_cpu import install

install("cpu")  # so that tests may import what imports torchtitan


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    init_ranks(tiny_config())
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture
def build(ranks: Ranks) -> Iterator[Callable[..., TitanTrainer]]:
    """build({"optim.lr": 0.1}, corpus=…) → a trainer that is closed after the test."""
    built: list[TitanTrainer] = []

    def make(over: dict[str, Any] | None = None, *, corpus: Any = None) -> TitanTrainer:
        trainer = TitanTrainer(tiny_config(over), corpus or TinyCorpus(), ranks=ranks)
        built.append(trainer)
        return trainer

    yield make
    for trainer in built:
        trainer.close()
