"""The leases that this process holds, as far as it may count on them. Pure: time is an argument.

A lease counts from the *first* sending of the request that got or renewed it, so it ends here
before the central can grant it anew; past that end nothing is drawn until the central has answered.
Orders may arrive late or twice: an end only shrinks, a watermark only rises, and a lease that was
called invalid is gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pww.wire import Instruction, Lease, Renewal, Span

Standing = Literal["draw", "pause", "lost"]


@dataclass(slots=True)
class _Holding:
    lease: Lease
    until_s: float  # by this machine's monotonic clock


class Holdings:
    """Leases by id, oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[int, _Holding] = {}

    def __contains__(self, lease: int) -> bool:
        return lease in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(tuple(self._held))

    def take(self, lease: Lease, *, asked_s: float) -> None:
        """A lease that was granted to a request first sent at `asked_s`."""
        self._held[lease.id] = _Holding(lease, asked_s + lease.ttl_s)

    def drop(self, lease: int) -> None:
        """It is over, or was never held."""
        self._held.pop(lease, None)

    def clear(self) -> None:
        """All are lost."""
        self._held.clear()

    def get(self, lease: int) -> Lease | None:
        """The lease as it is by now, None if it is not held."""
        holding = self._held.get(lease)
        return None if holding is None else holding.lease

    def renewals(self, *, ttl_s: float, start: int) -> tuple[Renewal, ...]:
        """What the next heartbeat asks for; `start` is to begin soon (-1: none)."""
        return tuple(Renewal(id=id_, ttl_s=ttl_s, start=id_ == start) for id_ in self._held)

    def obey(
        self, order: Instruction, asked: tuple[Renewal, ...], *, asked_s: float
    ) -> tuple[int, ...]:
        """Follows the answer to a heartbeat that asked for `asked`; returns what was lost."""
        ttl_s = {renewal.id: renewal.ttl_s for renewal in asked}
        lost = []
        for state in order.leases:
            holding = self._held.get(state.id)
            if holding is None:
                continue  # settled while the heartbeat was on its way
            lease = holding.lease
            stop = min(lease.span.stop, state.stop)
            if not state.valid or stop <= lease.span.start:
                del self._held[state.id]
                lost.append(state.id)
                continue
            update = {
                "span": Span(lease.span.start, stop),
                "watermark": max(lease.watermark, state.watermark),
            }
            holding.lease = lease.model_copy(update=update)
            until_s = asked_s + ttl_s.get(state.id, 0.0)
            holding.until_s = max(holding.until_s, until_s)
        return tuple(lost)

    def standing(self, lease: int, now_s: float) -> Standing:
        """Whether windows of the lease may be drawn now."""
        holding = self._held.get(lease)
        if holding is None:
            return "lost"
        started = holding.lease.watermark >= holding.lease.span.stop
        return "draw" if started and now_s < holding.until_s else "pause"
