"""The index space: which windows a position holds, the same at every site, in O(1) memory.

`N` windows are cut into `M = ceil(N / K)` blocks of `K` consecutive windows (the last may be
short). Positions run over `[0, E * M)`; position `e * M + i` holds block `perm(i)` of epoch `e`,
and the windows of a block are shuffled too. Both orders are `permutation.Permutation`s with the
labels

* blocks of an epoch:  `"blocks <seed> <epoch>"` over `M` items,
* windows of a block:  `"windows <seed> <epoch> <block>"` over the block's number of windows.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from pww.config.schema import Darl
from pww.errors import LeaseError
from pww.lease.permutation import VERSION, Permutation
from pww.wire import SpaceInfo, Span

MAX_POSITIONS = 2**62


class CorpusFacts(Protocol):
    """What of a corpus' manifest decides the index space."""

    @property
    def num_windows(self) -> int:
        """Windows for training."""

    @property
    def window_tokens(self) -> int:
        """Tokens of a window."""

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest."""


@dataclass(frozen=True, slots=True)
class BlockSpace:
    """An order of training over a corpus; equal spaces have equal digests and nothing else does."""

    num_windows: int
    block_windows: int
    seed: int
    epochs: int
    window_tokens: int
    corpus: str  # SHA-256 of the corpus manifest, which covers the tokenizer

    def __post_init__(self) -> None:
        for name in ("num_windows", "block_windows", "epochs", "window_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise LeaseError(
                    f"index space with {name}={value}: it must be at least 1; "
                    "use a corpus with training windows and check darl.* and data.*"
                )
        if self.num_positions >= MAX_POSITIONS:
            raise LeaseError(
                f"index space with {self.num_positions} positions: fewer than 2**62 are possible; "
                "lower darl.epochs or raise darl.block_windows"
            )

    @property
    def num_blocks(self) -> int:
        """M: blocks of one epoch."""
        return -(-self.num_windows // self.block_windows)

    @property
    def num_positions(self) -> int:
        """E * M: everything there is to lease."""
        return self.epochs * self.num_blocks

    @property
    def total_windows(self) -> int:
        """E * N: windows behind all positions."""
        return self.epochs * self.num_windows

    def block(self, position: int) -> int:
        """The block at `position`."""
        self._check(position)
        epoch, index = divmod(position, self.num_blocks)
        return self._order(epoch)(index)

    def windows(self, position: int) -> tuple[int, ...]:
        """The window ids of the block at `position`, in the order of training."""
        block = self.block(position)
        first = block * self.block_windows
        epoch = position // self.num_blocks
        size = self._block_size(block)
        order = Permutation(size, label=f"windows {self.seed} {epoch} {block}")
        return tuple(first + order(i) for i in range(size))

    def size(self, position: int) -> int:
        """Windows at `position`: K, or fewer where the corpus' last block sits."""
        return self._block_size(self.block(position))

    def first_blocks(self, spans: Iterable[Span], *, at_most: int) -> tuple[int, ...]:
        """The blocks at the first positions of `spans`, in their order."""
        positions = (p for span in spans for p in range(span.start, span.stop))
        return tuple(self.block(p) for p in islice(positions, at_most))

    def num_span_windows(self, span: Span) -> int:
        """Windows behind `span`, in O(1): every block counts K except each epoch's short one."""
        self._check(span.stop - 1)
        blocks = self.num_blocks
        shortfall = blocks * self.block_windows - self.num_windows
        if shortfall == 0:
            return len(span) * self.block_windows
        first, last = span.start // blocks, (span.stop - 1) // blocks
        # whole epochs between the first and the last contain their short block for certain
        num_short = max(0, last - first - 1)
        for epoch in {first, last}:
            short = epoch * blocks + self._order(epoch).inverse(blocks - 1)
            num_short += span.start <= short < span.stop
        return len(span) * self.block_windows - num_short * shortfall

    def digest(self) -> str:
        """SHA-256 over everything that decides which window is where."""
        text = "\n".join(
            (
                f"num_windows {self.num_windows}",
                f"block_windows {self.block_windows}",
                f"window_tokens {self.window_tokens}",
                f"seed {self.seed}",
                f"epochs {self.epochs}",
                f"permutation {VERSION}",
                f"corpus {self.corpus}",
            )
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def info(self) -> SpaceInfo:
        """The space as values that travel, so that a refusal can print both sides'."""
        return SpaceInfo(
            num_windows=self.num_windows,
            block_windows=self.block_windows,
            window_tokens=self.window_tokens,
            seed=self.seed,
            epochs=self.epochs,
            permutation=VERSION,
            corpus=self.corpus,
            digest=self.digest(),
        )

    @classmethod
    def of(cls, corpus: CorpusFacts, darl: Darl) -> "BlockSpace":
        """The space of a corpus under the lease settings.

        Raises:
            LeaseError: the corpus has no window to train on.
        """
        return cls(
            num_windows=corpus.num_windows,
            block_windows=darl.block_windows,
            seed=darl.seed,
            epochs=darl.epochs,
            window_tokens=corpus.window_tokens,
            corpus=corpus.digest,
        )

    @classmethod
    def from_info(cls, info: SpaceInfo) -> "BlockSpace":
        """The space that `info` describes.

        Raises:
            LeaseError: this version of pww derives another order than the one described.
        """
        space = cls(
            num_windows=info.num_windows,
            block_windows=info.block_windows,
            seed=info.seed,
            epochs=info.epochs,
            window_tokens=info.window_tokens,
            corpus=info.corpus,
        )
        if space.info() != info:
            raise LeaseError(
                f"index space {info.digest[:12]} uses permutation {info.permutation!r}, this pww "
                f"derives {VERSION!r} ({space.digest()[:12]}); use the version of pww that made it"
            )
        return space

    def _order(self, epoch: int) -> Permutation:
        return Permutation(self.num_blocks, label=f"blocks {self.seed} {epoch}")

    def _block_size(self, block: int) -> int:
        return min(self.block_windows, self.num_windows - block * self.block_windows)

    def _check(self, position: int) -> None:
        if not 0 <= position < self.num_positions:
            raise LeaseError(
                f"position {position} is outside the index space [0, {self.num_positions}); "
                "acquire spans from the coordinator only"
            )
