"""A lease as the table knows it, and the memory of those that expired."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pww.wire import Span


class Held(NamedTuple):
    """A lease, immutable: a look at the table stays true to the moment it was taken.

    `pinned` is the delta computed from it, "" if none. A named tuple, as events are, for speed.
    """

    id: int
    replica: str
    start: int
    stop: int
    watermark: int  # work may start below it, and nobody may steal below it
    pinned: str = ""

    @property
    def span(self) -> Span:
        """Its positions."""
        return Span(self.start, self.stop)

    @property
    def size(self) -> int:
        """The number of its positions (`len` is the tuple's)."""
        return self.stop - self.start

    @property
    def started(self) -> bool:
        """Whether work on the whole span is authorised, so that a phase may begin."""
        return self.watermark == self.stop


class Lapsed:
    """Expired leases whose positions went to nobody: still their replicas', if those come back.

    They are disjoint, since each is forgotten when somebody gets one of its positions.
    """

    __slots__ = ("_leases", "_starts")

    def __init__(self, leases: Iterable[Held] = ()) -> None:
        self._leases = {held.id: held for held in leases}
        # (first position, lease), sorted
        self._starts = sorted([(held.start, held.id) for held in self._leases.values()])

    def __iter__(self) -> Iterator[Held]:
        return iter(self._leases.values())

    def __len__(self) -> int:
        return len(self._leases)

    def __getitem__(self, lease: int) -> Held:
        return self._leases[lease]

    def get(self, lease: int) -> Held | None:
        """The lapsed lease, if it is one."""
        return self._leases.get(lease)

    def add(self, held: Held) -> None:
        """Remembers a lease that has just expired."""
        self._leases[held.id] = held
        insort(self._starts, (held.start, held.id))

    def forget(self, start: int, stop: int) -> None:
        """Forgets every lease that meets `[start, stop)`: neighbours, because all are disjoint."""
        starts = self._starts
        first = bisect_right(starts, start, key=_position) - 1
        if first < 0 or self._leases[starts[first][1]].stop <= start:
            first += 1
        last = bisect_left(starts, stop, key=_position)
        for _, lease in starts[first:last]:
            del self._leases[lease]
        del starts[first:last]


def _position(pair: tuple[int, int]) -> int:
    return pair[0]
