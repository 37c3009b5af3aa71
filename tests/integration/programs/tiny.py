"""A small run for tests of the trainer: a Config, and a corpus that follows from window ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from pww.config.load import compose
from pww.config.schema import Config

VOCAB = 250
PADDED = 256
SEQ_LEN = 16


@dataclass(frozen=True)
class TinyManifest:
    num_windows: int = 1000
    num_held_out: int = 11
    window_tokens: int = SEQ_LEN + 1
    vocab_size: int = VOCAB
    padded_vocab: int = PADDED


class TinyCorpus:
    """Every window counts up from a start that depends on its id: easy to learn."""

    def __init__(self, **manifest: int) -> None:
        self.manifest = TinyManifest(**manifest)

    def windows(self, ids: Sequence[int]) -> "np.ndarray[Any, Any]":
        assert len(ids) > 0
        start = np.asarray(ids, dtype=np.int64)[:, None] * 7
        return (start + np.arange(self.manifest.window_tokens)) % self.manifest.vocab_size

    def expect(self, ids: Sequence[int]) -> None:
        self.expected = list(ids)

    def held_out(self, ids: Sequence[int]) -> "np.ndarray[Any, Any]":
        return (self.windows(ids) + 3) % self.manifest.vocab_size


@cache
def _base() -> Config:
    values = {
        "replica": "a", "seed": 7, "parallel": "single", "parallel.ranks": 1,
        "site.cores_per_rank": 1, "model": "qwen3_debug", "model.dim": 32, "model.num_layers": 2,
        "model.num_heads": 4, "model.num_kv_heads": 2, "model.head_dim": 8, "model.hidden_dim": 48,
        "model.seq_len": SEQ_LEN, "model.tie_embeddings": True, "model.vocab_multiple": 256,
        "model.dtype": "fp32", "optim.lr": 0.01, "optim.beta1": 0.9, "optim.beta2": 0.95,
        "optim.weight_decay": 0.1, "optim.batch_windows": 4, "optim.warmup": 0.1,
        "optim.decay": "cosine", "optim.min_lr": 0.1, "optim.clip_norm": 1.0,
        "evaluation.max_windows": 16, "metrics.every_steps": 1,
    }  # fmt: skip
    return compose([f"{key}={value}" for key, value in values.items()])


def tiny_config(over: Mapping[str, Any] | None = None) -> Config:
    """The project's own configuration made small; `over` is {"optim.lr": 0.1, ...}.

    `over` goes past the rules across groups, so that a test can break one.
    """
    tree = _base().model_dump()
    for path, value in (over or {}).items():
        *groups, key = path.split(".")
        node = tree
        for group in groups:
            node = node[group]
        node[key] = value
    return Config.model_validate(tree)


class Never:
    """A stop that nobody asks for."""

    def agreed(self) -> bool:
        return False


class After:
    """A stop that is agreed at the boundary after `steps` steps."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def agreed(self) -> bool:
        self._left -= 1
        return self._left < 0


class Steps:
    """A step hook that keeps what it was told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, **row: Any) -> None:
        self.rows.append(row)
