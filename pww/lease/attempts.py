"""How often work on each position began and was lost: counts in intervals, zero is not stored."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from pww.errors import LeaseError


class Attempts:
    """Position -> count as maximal intervals of equal counts; cost follows fragments."""

    __slots__ = ("_counts", "_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._counts: list[int] = []

    @classmethod
    def from_flat(cls, flat: Sequence[int]) -> "Attempts":
        """The counts whose `flat` this is.

        Raises:
            LeaseError: it is the `flat` of nothing.
        """
        made = cls()
        made._starts, made._stops = list(flat[::3]), list(flat[1::3])
        made._counts = list(flat[2::3])
        ends = [0, *made._stops]
        if len(flat) % 3 or not all(
            end <= start < stop and count > 0
            for end, (start, stop, count) in zip(ends, made, strict=False)
        ):
            raise LeaseError("counts of attempts are out of order; the snapshot is damaged")
        return made

    def flat(self) -> list[int]:
        """Start, stop and count of every interval, in order."""
        flat = [0] * (3 * len(self._starts))
        flat[::3], flat[1::3], flat[2::3] = self._starts, self._stops, self._counts
        return flat

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._starts, self._stops, self._counts, strict=True)

    def __len__(self) -> int:
        """Number of intervals."""
        return len(self._starts)

    def count(self, position: int) -> int:
        """Attempts at one position."""
        i = bisect_right(self._starts, position) - 1
        return self._counts[i] if i >= 0 and position < self._stops[i] else 0

    def change(self, start: int, stop: int, *, by: int) -> None:
        """Adds `by` to every position of `[start, stop)`, which may be empty.

        Raises:
            LeaseError: a count would be negative.
        """
        self._rewrite(start, stop, by=by, forget=False)

    def forget(self, start: int, stop: int) -> None:
        """Sets the counts of `[start, stop)` to zero."""
        self._rewrite(start, stop, by=0, forget=True)

    def reaching(self, start: int, stop: int, *, limit: int) -> tuple[int, int] | None:
        """The first run in `[start, stop)`, maximal there, whose counts are all >= `limit`."""
        i = bisect_right(self._stops, start)
        found: tuple[int, int] | None = None
        while i < len(self._starts) and self._starts[i] < stop:
            low, high = max(start, self._starts[i]), min(stop, self._stops[i])
            enough = self._counts[i] >= limit
            if found is not None and (not enough or low != found[1]):
                break
            if enough:
                found = (found[0] if found else low, high)
            i += 1
        return found

    def _rewrite(self, start: int, stop: int, *, by: int, forget: bool) -> None:
        """Replaces all intervals that meet or touch `[start, stop)`."""
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        runs: list[tuple[int, int, int]] = []

        def put(low: int, high: int, count: int) -> None:
            if low >= high or count == 0:
                return
            if runs and runs[-1][1:] == (low, count):
                low = runs.pop()[0]
            runs.append((low, high, count))

        def put_new(low: int, high: int, count: int) -> None:
            if low < high and not forget and count + by < 0:
                raise LeaseError(f"[{low}, {high}) was attempted {count} times, not {-by}")
            put(low, high, 0 if forget else count + by)

        done = start
        old = zip(
            self._starts[first:last],
            self._stops[first:last],
            self._counts[first:last],
            strict=True,
        )
        for low, high, count in old:
            put(low, min(high, start), count)
            put_new(done, min(low, stop), 0)
            put_new(max(low, start), min(high, stop), count)
            put(max(low, stop), high, count)
            done = max(done, min(high, stop))
        put_new(done, stop, 0)
        self._starts[first:last] = [run[0] for run in runs]
        self._stops[first:last] = [run[1] for run in runs]
        self._counts[first:last] = [run[2] for run in runs]
