"""Which text each worker draws its windows from: all of it, or the text of its own authors."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pww.errors import DataError
from pww.lab.text import Corpus, Piece, encoded


@dataclass(frozen=True, slots=True)
class Streams:
    """A text and, of each worker, where in it its own begins and how long that is."""

    tokens: torch.Tensor  # uint8
    starts: torch.Tensor  # (M,) int64
    sizes: torch.Tensor  # (M,) int64

    def draw(self, generator: torch.Generator, *, windows: int, length: int) -> torch.Tensor:
        """Windows at random places, (M, windows, length): each place as likely as the next."""
        room = (self.sizes - length + 1).double()
        drawn = torch.rand(
            len(self.sizes), windows, generator=generator, dtype=torch.float64
        )  # fp64, since fp32 has fewer places than a text
        first = (drawn * room[:, None]).long() + self.starts[:, None]
        return self.tokens[first[:, :, None] + torch.arange(length)].long()


def streams(
    corpus: Corpus, *, workers: int, split: Literal["iid", "author"], length: int
) -> Streams:
    """Each worker's text.

    Raises:
        DataError: a worker would have less than a window.
    """
    if split == "iid":
        tokens = encoded("".join(piece.text for piece in corpus.train))
        starts = torch.zeros(workers, dtype=torch.int64)
        return Streams(tokens, starts, torch.full((workers,), len(tokens)))
    parts = [encoded("".join(p.text for p in one)) for one in shares(corpus.train, workers)]
    sizes = torch.tensor([len(part) for part in parts])
    if int(sizes.min()) < length:
        raise DataError(
            f"task.split=author: {corpus.name} has {len({p.author for p in corpus.train})} "
            f"authors, too few for workers={workers} with windows of {length}; use fewer workers, "
            "or task.split=iid"
        )
    return Streams(torch.cat(parts), sizes.cumsum(0) - sizes, sizes)


def shares(pieces: Sequence[Piece], workers: int) -> list[list[Piece]]:
    """Every author whole with one worker, the longest first to whoever has least."""
    by_author: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_author[piece.author].append(piece)
    longest = sorted(
        by_author.values(), key=lambda one: (-sum(len(p.text) for p in one), one[0].author)
    )
    found: list[list[Piece]] = [[] for _ in range(workers)]
    sizes = [0] * workers
    for one in longest:
        least = sizes.index(min(sizes))
        found[least] += one
        sizes[least] += sum(len(piece.text) for piece in one)
    return found


def held_out(corpus: Corpus, *, windows: int, length: int) -> torch.Tensor:
    """Windows of the text that nobody trains on, evenly over it: (1, windows, length).

    Raises:
        DataError: there is less than a window.
    """
    room = len(corpus.held_out) - length
    if room < 0:
        raise DataError(f"text {corpus.name}: less than a window of {length} is held out")
    first = torch.linspace(0, room, windows, dtype=torch.float64).long()
    return corpus.held_out[first[:, None] + torch.arange(length)].long()[None]
