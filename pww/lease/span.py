"""A set of positions as sorted disjoint intervals: cost follows fragments, not positions."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from pww.errors import LeaseError
from pww.wire import Span


class IntervalSet:
    """Positions in maximal intervals; neighbours are joined, so equal sets have equal intervals.

    Bounds are plain integers, a `Span` is made for those who look only: making one costs more
    than the change. Two sorted lists, because a memory move of 10^5 entries takes microseconds.
    """

    __slots__ = ("starts", "stops", "total")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.total = 0

    @classmethod
    def from_flat(cls, bounds: Sequence[int]) -> "IntervalSet":
        """The set whose `flat` this is.

        Raises:
            LeaseError: the bounds do not rise.
        """
        made = cls()
        made.starts, made.stops = list(bounds[::2]), list(bounds[1::2])
        if (
            len(bounds) % 2
            or any(map(int.__ge__, bounds, bounds[1:]))
            or min(bounds, default=0) < 0
        ):
            raise LeaseError("interval bounds do not rise; the snapshot is damaged")
        made.total = sum(made.stops) - sum(made.starts)
        return made

    def flat(self) -> list[int]:
        """Start and stop of every interval, in order."""
        bounds = [0] * (2 * len(self.starts))
        bounds[::2], bounds[1::2] = self.starts, self.stops
        return bounds

    def __iter__(self) -> Iterator[Span]:
        return map(Span, self.starts, self.stops)

    def __len__(self) -> int:
        """Number of intervals (`total` is the number of positions)."""
        return len(self.starts)

    def covers(self, start: int, stop: int) -> bool:
        """Whether `[start, stop)` is not empty and every position of it is in the set."""
        i = bisect_right(self.starts, start) - 1
        return i >= 0 and start < stop <= self.stops[i]

    def meets(self, start: int, stop: int) -> bool:
        """Whether any position of `[start, stop)` is in the set."""
        i = bisect_left(self.starts, stop) - 1
        return i >= 0 and start < min(stop, self.stops[i])

    def add(self, start: int, stop: int) -> None:
        """Adds the positions `[start, stop)`, of which none is in the set.

        Raises:
            LeaseError: some are, or it is empty.
        """
        starts, stops = self.starts, self.stops
        if stops and stops[-1] == start < stop:  # the common case: commits come in order
            stops[-1] = stop
            self.total += stop - start
            return
        i = bisect_left(starts, start)
        if (
            start >= stop
            or (i > 0 and stops[i - 1] > start)
            or (i < len(starts) and starts[i] < stop)
        ):
            raise LeaseError(f"[{start}, {stop}) is empty or in the set already, in part or whole")
        joins_left = i > 0 and stops[i - 1] == start
        joins_right = i < len(starts) and starts[i] == stop
        match joins_left, joins_right:
            case True, True:
                stops[i - 1] = stops[i]
                del starts[i], stops[i]
            case True, False:
                stops[i - 1] = stop
            case False, True:
                starts[i] = start
            case _:
                starts.insert(i, start)
                stops.insert(i, stop)
        self.total += stop - start

    def remove(self, start: int, stop: int) -> None:
        """Removes the positions `[start, stop)`, which are all in the set.

        Raises:
            LeaseError: some are not, or it is empty.
        """
        starts, stops = self.starts, self.stops
        if starts and starts[0] == start < stop < stops[0]:  # the common case: lowest first
            starts[0] = stop
            self.total -= stop - start
            return
        i = bisect_right(starts, start) - 1
        if not (i >= 0 and start < stop <= stops[i]):
            raise LeaseError(f"[{start}, {stop}) is empty or not in the set, in part or whole")
        match starts[i] < start, stop < stops[i]:
            case True, True:
                starts.insert(i + 1, stop)
                stops.insert(i, start)
            case True, False:
                stops[i] = start
            case False, True:
                starts[i] = stop
            case _:
                del starts[i], stops[i]
        self.total -= stop - start
