"""Pieces: a corpus ruled into runs of its files that can be read, and tokenised, on their own.

How it is ruled decides who does which work and what a kill costs, never a token: everything that
depends on the place in the corpus is counted in characters from its start.
"""

from collections.abc import Iterable
from dataclasses import dataclass

PIECE_BYTES = 2 << 20
MAX_PIECES = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """A file, or what begins in `[start, stop)` of it; the source says what it counts in."""

    file: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Spans that follow each other, and the bytes that they have on disk."""

    spans: tuple[Span, ...]
    size_bytes: int


def piece_bytes(total_bytes: int) -> int:
    """How large a piece is meant to be: small enough that a kill costs seconds, not too many."""
    return max(PIECE_BYTES, -(-total_bytes // MAX_PIECES))


def rule(spans: Iterable[tuple[Span, int]], *, total_bytes: int) -> tuple[Piece, ...]:
    """Spans and their bytes, joined up to the size of a piece; one larger than that stays whole."""
    limit = piece_bytes(total_bytes)
    pieces: list[Piece] = []
    held: list[Span] = []
    size = 0
    for span, num_bytes in spans:
        if held and size + num_bytes > limit:
            pieces.append(Piece(tuple(held), size))
            held, size = [], 0
        held.append(span)
        size += num_bytes
    if held:
        pieces.append(Piece(tuple(held), size))
    return tuple(pieces)
