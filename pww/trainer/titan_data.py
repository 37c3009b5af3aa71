"""The data loader: exactly the windows that a lease names, each rank its slice of every step.

Which windows comes from outside, at run time; the loader keeps no position of its own, so nothing
about data needs to be in a checkpoint. Import after `titan_cpu.install`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.tokenizer import BaseTokenizer


class Manifest(Protocol):
    """What the trainer needs to know of a corpus."""

    @property
    def num_windows(self) -> int:
        """Windows to train on."""

    @property
    def num_held_out(self) -> int:
        """Windows kept for evaluation."""

    @property
    def window_tokens(self) -> int:
        """Tokens of a window: seq_len + 1."""

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding."""


class Corpus(Protocol):
    """Tokenised text, by window."""

    @property
    def manifest(self) -> Manifest:
        """Its numbers."""

    def windows(self, ids: Sequence[int]) -> "np.ndarray[Any, Any]":
        """[n, seq_len + 1] integers: the windows to train on with these ids."""

    def expect(self, ids: Sequence[int]) -> None:
        """These windows will be read soon; a hint, which never raises."""

    def held_out(self, ids: Sequence[int]) -> "np.ndarray[Any, Any]":
        """[n, seq_len + 1] integers: the windows for evaluation with these ids."""


Batch = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Inputs {"input": [B, L]} and labels [B, L], on the CPU."""


def my_slices(ids: Sequence[int], *, batch: int, rank: int, world: int) -> Iterator[Sequence[int]]:
    """This rank's ids of every step, `batch` a step over all ranks; as many steps on every rank.

    In the last step a rank may get fewer than its share, or none.
    """
    share = batch // world
    for start in range(0, len(ids), batch):
        step = ids[start : start + batch]
        yield step[rank * share : (rank + 1) * share]


def padded(rows: "np.ndarray[Any, Any] | None", *, batch: int, seq_len: int) -> Batch:
    """A batch of `batch` windows of which the first are `rows`; the labels of the rest are ignored.

    Every rank must run the same shapes as often as the others; the loss is a sum over labels that
    are not ignored, divided by their number over all ranks, so padding changes neither loss nor
    gradient.
    """
    num = 0 if rows is None else len(rows)
    if rows is not None and num == batch:
        tokens = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
        return {"input": tokens[:, :-1]}, tokens[:, 1:]
    tokens = torch.zeros(batch, seq_len + 1, dtype=torch.int64)
    if rows is not None:
        tokens[:num] = torch.from_numpy(np.asarray(rows, dtype=np.int64))
    labels = tokens[:, 1:].clone()
    labels[num:] = IGNORE_INDEX
    return {"input": tokens[:, :-1]}, labels


class WindowLoader(BaseDataLoader):  # type: ignore[misc]
    """Torchtitan's data loader, told before every phase what to read."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """Nothing to configure."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: object,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None,
    ) -> None:
        self._world, self._rank = dp_world_size, dp_rank
        self._seq_len, self._share = seq_len, local_batch_size
        self._corpus: Corpus | None = None
        self._ids: Sequence[int] = ()
        self.drawn: list[int] = []

    def assign(self, corpus: Corpus, ids: Sequence[int]) -> None:
        """The windows of the next phase, all ranks' together; forgets what was drawn before."""
        self._corpus, self._ids = corpus, ids
        self.drawn = []

    def expect(self, corpus: Corpus, ids: Sequence[int]) -> None:
        """The windows that are likely to be assigned next: this rank's are read ahead."""
        corpus.expect([window for mine in self._slices(ids) for window in mine])

    def _slices(self, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        batch = self._share * self._world
        return my_slices(ids, batch=batch, rank=self._rank, world=self._world)

    def __iter__(self) -> Iterator[Batch]:
        assert self._corpus is not None, "assign() comes first"
        for ids in self._slices(self._ids):
            rows = self._corpus.windows(ids) if len(ids) else None
            self.drawn.extend(ids)
            yield padded(rows, batch=self._share, seq_len=self._seq_len)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the lease is the position."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore."""


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    """Windows are tokens already; torchtitan wants a tokenizer object all the same."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        """Nothing to configure."""

    def __init__(self, config: Config, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, *args: object, **given: object) -> list[int]:
        """Never called: there is no text here."""
        raise NotImplementedError("the corpus is tokenised by pww.data, not by the trainer")

    def decode(self, *args: object, **given: object) -> str:
        """Never called: there is no text here."""
        raise NotImplementedError("the corpus is tokenised by pww.data, not by the trainer")

    def get_vocab_size(self) -> int:
        """Never called: the model's vocabulary comes from the corpus."""
        raise NotImplementedError("the vocabulary is the corpus manifest's padded_vocab")
