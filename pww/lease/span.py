"""A set of positions as sorted disjoint intervals: cost follows fragments, not positions."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from pww.errors import LeaseError
from pww.wire import Span


class IntervalSet:
    """Positions in maximal intervals; neighbours are joined, so equal sets have equal intervals."""

    __slots__ = ("_starts", "_stops", "total")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total = 0

    def __iter__(self) -> Iterator[Span]:
        return (Span(a, b) for a, b in zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """Number of intervals (`total` is the number of positions)."""
        return len(self._starts)

    def first(self) -> Span | None:
        """The lowest interval, None when the set is empty."""
        return Span(self._starts[0], self._stops[0]) if self._starts else None

    def covers(self, span: Span) -> bool:
        """Whether every position of `span` is in the set."""
        i = bisect_right(self._starts, span.start) - 1
        return i >= 0 and span.stop <= self._stops[i]

    def add(self, span: Span) -> None:
        """Adds positions of which none is in the set.

        Raises:
            LeaseError: some are.
        """
        i = bisect_left(self._starts, span.start)
        if (i > 0 and self._stops[i - 1] > span.start) or (
            i < len(self._starts) and self._starts[i] < span.stop
        ):
            raise LeaseError(f"[{span.start}, {span.stop}) is in the set already, in part or whole")
        joins_left = i > 0 and self._stops[i - 1] == span.start
        joins_right = i < len(self._starts) and self._starts[i] == span.stop
        match joins_left, joins_right:
            case True, True:
                self._stops[i - 1] = self._stops[i]
                del self._starts[i], self._stops[i]
            case True, False:
                self._stops[i - 1] = span.stop
            case False, True:
                self._starts[i] = span.start
            case _:
                self._starts.insert(i, span.start)
                self._stops.insert(i, span.stop)
        self.total += len(span)

    def remove(self, span: Span) -> None:
        """Removes positions that are all in the set.

        Raises:
            LeaseError: some are not.
        """
        if not self.covers(span):
            raise LeaseError(f"[{span.start}, {span.stop}) is not in the set, in part or whole")
        i = bisect_right(self._starts, span.start) - 1
        start, stop = self._starts[i], self._stops[i]
        match start < span.start, span.stop < stop:
            case True, True:
                self._stops[i] = span.start
                self._starts.insert(i + 1, span.stop)
                self._stops.insert(i + 1, stop)
            case True, False:
                self._stops[i] = span.start
            case False, True:
                self._starts[i] = span.stop
            case _:
                del self._starts[i], self._stops[i]
        self.total -= len(span)
