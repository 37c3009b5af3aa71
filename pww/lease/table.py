"""Who holds which positions: a pure state machine of intervals, changed by events only.

    UNASSIGNED --granted, revived--> LEASED --committed--> COMMITTED
        ^--------returned (released, expired, rejected, ...)---'

`decide_*` looks and returns events, `apply` is the only thing that changes who holds what, `renew`
moves a deadline within what was promised. The caller makes events durable between the two, so a
replayed journal gives the same table. Time is an argument. Memory and cost follow live leases and
fragments, never the number of positions.

A lease that expired is remembered until somebody else gets one of its positions: until then it is
still its replica's and can be revived by a heartbeat, a registration or a delta.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from pww.errors import LeaseError
from pww.lease.events import (
    Committed,
    Event,
    Granted,
    Pinned,
    Promised,
    Reason,
    Returned,
    Revived,
    Unpinned,
)
from pww.lease.span import IntervalSet
from pww.wire import Leased, Span

PROMISE_HEADROOM = 1.25
"""A promise in the journal exceeds the renewal that made it, so that few renewals make another."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as the table knows it. `pinned`: the delta computed from it, "" if none."""

    id: int
    replica: str
    span: Span
    watermark: int  # work may start below it; a grant authorises the whole span
    pinned: str = ""


class LeaseTable:
    """The lease table over `num_positions` positions in epochs of `epoch_positions`."""

    def __init__(self, num_positions: int, *, epoch_positions: int) -> None:
        self.num_positions = num_positions
        self._epoch = epoch_positions
        self.unassigned = IntervalSet()
        self.unassigned.add(Span(0, num_positions))
        self.committed = IntervalSet()
        self.committed_by: dict[str, int] = {}
        self._leases: dict[int, Held] = {}
        self._deadline_s: dict[int, float] = {}
        self._promised_s: dict[int, float] = {}  # no holder counts on more time from a renewal
        self._leased = 0
        self._lapsed: dict[int, Held] = {}
        self._lapsed_starts: list[tuple[int, int]] = []  # (first position, lease), sorted
        self._by_delta: dict[str, list[int]] = {}
        self._next_id = 1

    # ------------------------------------------------------------------------------------- looking

    @property
    def leased(self) -> int:
        """Positions under live leases."""
        return self._leased

    @property
    def complete(self) -> bool:
        """Whether every position is committed."""
        return self.committed.total == self.num_positions

    def leases(self, replica: str = "") -> Iterator[Held]:
        """Live leases, oldest first; of one replica if named."""
        return (held for held in self._leases.values() if replica in ("", held.replica))

    def find(self, lease: int, *, replica: str) -> Held | None:
        """The live lease, if it is this replica's."""
        held = self._leases.get(lease)
        return held if held is not None and held.replica == replica else None

    def remaining_s(self, lease: int, now_s: float) -> float:
        """Seconds until the live lease expires unless it is renewed."""
        return max(0.0, self._deadline_s[lease] - now_s)

    # ------------------------------------------------------------------------------------ deciding

    def decide_grant(self, replica: str, *, num_blocks: int, ttl_s: float) -> Granted | None:
        """One lease on the lowest free positions, at most `num_blocks` of one epoch and one run."""
        free = self.unassigned.first()
        if free is None:
            return None
        epoch_end = (free.start // self._epoch + 1) * self._epoch
        stop = min(free.stop, free.start + num_blocks, epoch_end)
        return Granted(self._next_id, replica, free.start, stop, ttl_s)

    def decide_expiry(self, now_s: float) -> tuple[Event, ...]:
        """Returns every lease whose deadline has come; a pinned one never expires."""
        return tuple(
            Returned(held.id, "expired")
            for held in self._leases.values()
            if not held.pinned and self._deadline_s[held.id] <= now_s
        )

    def decide_return(
        self, leases: Collection[int], *, replica: str, reason: Reason
    ) -> tuple[Event, ...]:
        """Returns those of `leases` that are live, this replica's and not pinned."""
        found = (self.find(lease, replica=replica) for lease in dict.fromkeys(leases))
        return tuple(Returned(held.id, reason) for held in found if held and not held.pinned)

    def decide_revive(
        self, leases: Collection[int], *, replica: str, ttl_s: float
    ) -> tuple[Event, ...]:
        """Gives back those of `leases` that expired under this replica and went to nobody."""
        found = (self._lapsed.get(lease) for lease in dict.fromkeys(leases))
        return tuple(Revived(held.id, ttl_s) for held in found if held and held.replica == replica)

    def decide_promise(self, lease: int, *, ttl_s: float) -> tuple[Event, ...]:
        """What must be durable before the live lease may be renewed for `ttl_s`; mostly nothing."""
        if ttl_s <= self._promised_s[lease]:
            return ()
        return (Promised(lease, ttl_s * PROMISE_HEADROOM),)

    def decide_pin(
        self, delta: str, *, replica: str, spans: Sequence[Leased], ttl_s: float
    ) -> tuple[Event, ...]:
        """Pins every lease that a delta names, or none.

        Raises:
            LeaseError: one of them is not this replica's (any more), has another span, or is
            pinned.
        """
        events: list[Event] = []
        if len({leased.lease for leased in spans}) != len(spans):
            raise LeaseError("a lease is named twice; name each once")
        for leased in spans:
            live = self.find(leased.lease, replica=replica)
            held = live or self._lapsed.get(leased.lease)
            if held is None or held.replica != replica:
                raise LeaseError(
                    f"lease {leased.lease} is not {replica}'s: it expired and its blocks were "
                    "leased again, or it was returned or committed; acquire again"
                )
            if held.span != leased.span:
                raise LeaseError(
                    f"lease {leased.lease} holds [{held.span.start}, {held.span.stop}), the delta "
                    f"names [{leased.span.start}, {leased.span.stop}); train exactly what is leased"
                )
            if held.pinned:
                raise LeaseError(
                    f"lease {leased.lease} belongs to delta {held.pinned}, which has no "
                    "verdict yet; wait for it"
                )
            if live is None:
                events.append(Revived(held.id, ttl_s))
            events.append(Pinned(held.id, delta))
        return tuple(events)

    def decide_commit(self, delta: str) -> tuple[Event, ...]:
        """Commits every lease that the delta pins."""
        return tuple(
            Committed(held.id, delta, held.replica, held.span.start, held.span.stop)
            for held in self._pinned(delta)
        )

    def decide_reject(self, delta: str, *, keep: Collection[int] = ()) -> tuple[Event, ...]:
        """Returns every lease that the delta pins; those in `keep` stay leased, without the pin."""
        return tuple(
            Unpinned(held.id) if held.id in keep else Returned(held.id, "rejected")
            for held in self._pinned(delta)
        )

    # ------------------------------------------------------------------------------------ changing

    def apply(self, event: Event, now_s: float) -> None:
        """Makes one transition.

        Raises:
            LeaseError: the event does not follow from this state: its journal is damaged.
        """
        try:
            self._apply(event, now_s)
        except (LeaseError, KeyError, ValueError) as why:
            raise LeaseError(
                f"{event} does not follow from the table's state ({why}); the journal is damaged"
            ) from why

    def renew(self, lease: int, *, ttl_s: float, now_s: float) -> None:
        """The live lease lives for at least `ttl_s` from now.

        A renewal never shortens it: its holder, whom the answer may not reach, counts on the old
        deadline.

        Raises:
            LeaseError: `decide_promise` was not asked first.
        """
        if ttl_s > self._promised_s[lease]:
            raise LeaseError(
                f"lease {lease} is promised {self._promised_s[lease]:g} s, not {ttl_s:g} s; make "
                "the promise durable first"
            )
        self._deadline_s[lease] = max(self._deadline_s[lease], now_s + ttl_s)

    def restore(self, *, now_s: float, grace_s: float) -> None:
        """After a replay: nobody pays for the downtime, and what was promised is kept.

        Every live lease has what its holder may count on since a renewal that came just before the
        end, but `grace_s` at least.
        """
        for lease, promised_s in self._promised_s.items():
            self._deadline_s[lease] = now_s + max(promised_s, grace_s)

    def _apply(self, event: Event, now_s: float) -> None:
        match event:
            case Granted(lease, replica, start, stop, ttl_s):
                if lease < self._next_id:
                    raise LeaseError(f"lease id {lease} was used before")
                span = Span(start, stop)
                self.unassigned.remove(span)
                self._forget_lapsed(span)
                self._hold(Held(lease, replica, span, watermark=stop), ttl_s, now_s)
                self._next_id = lease + 1
            case Revived(lease, ttl_s):
                held = self._lapsed[lease]
                self.unassigned.remove(held.span)
                self._forget_lapsed(held.span)
                self._hold(held, ttl_s, now_s)
            case Promised(lease, ttl_s):
                self._promised_s[self._leases[lease].id] = ttl_s
            case Pinned(lease, delta):
                held = self._leases[lease]
                if held.pinned:
                    raise LeaseError(f"lease {lease} is pinned already")
                self._leases[lease] = replace(held, pinned=delta)
                self._by_delta.setdefault(delta, []).append(lease)
            case Unpinned(lease):
                self._leases[lease] = replace(self._unpin(self._leases[lease]), pinned="")
            case Returned(lease, reason):
                held = self._drop(lease)
                self.unassigned.add(held.span)
                if reason == "expired":
                    self._lapsed[lease] = held
                    insort(self._lapsed_starts, (held.span.start, lease))
            case Committed(lease, delta, replica, start, stop):
                held = self._leases[lease]
                if held != Held(lease, replica, Span(start, stop), held.watermark, delta):
                    raise LeaseError(f"lease {lease} is {held}")
                self._drop(lease)
                self.committed.add(held.span)
                self.committed_by[replica] = self.committed_by.get(replica, 0) + len(held.span)
            case _:
                assert_never(event)

    def _hold(self, held: Held, ttl_s: float, now_s: float) -> None:
        self._leases[held.id] = held
        self._deadline_s[held.id], self._promised_s[held.id] = now_s + ttl_s, ttl_s
        self._leased += len(held.span)

    def _drop(self, lease: int) -> Held:
        held = self._unpin(self._leases.pop(lease))
        del self._deadline_s[lease], self._promised_s[lease]
        self._leased -= len(held.span)
        return held

    def _unpin(self, held: Held) -> Held:
        if held.pinned:
            pinned = self._by_delta[held.pinned]
            pinned.remove(held.id)
            if not pinned:
                del self._by_delta[held.pinned]
        return held

    def _pinned(self, delta: str) -> list[Held]:
        return [self._leases[lease] for lease in self._by_delta.get(delta, ())]

    def _forget_lapsed(self, span: Span) -> None:
        """Lapsed leases are disjoint: those that meet `span` are neighbours in the list."""
        starts = self._lapsed_starts
        first = max(0, bisect_right(starts, (span.start, self._next_id)) - 1)
        last = bisect_left(starts, (span.stop, 0))
        for _, lease in starts[first:last]:
            if self._lapsed[lease].span.stop > span.start:
                del self._lapsed[lease]
        starts[first:last] = [pair for pair in starts[first:last] if pair[1] in self._lapsed]

    # ----------------------------------------------------------------------------------- verifying

    def verify(self) -> None:
        """Checks completeness, disjointness and accounting.

        Raises:
            LeaseError: one of them does not hold: a bug of ours, or a damaged journal.
        """
        parts = sorted(
            [(s, "unassigned") for s in self.unassigned]
            + [(s, "committed") for s in self.committed]
            + [(held.span, f"lease {held.id}") for held in self._leases.values()]
        )
        end, owner = 0, "the start"
        for span, name in parts:
            if span.start < end:
                raise LeaseError(f"disjointness: position {span.start} is in {owner} and in {name}")
            if span.start > end:
                raise LeaseError(f"completeness: [{end}, {span.start}) is in no state")
            end, owner = span.stop, name
        if end != self.num_positions:
            raise LeaseError(f"completeness: states end at {end} of {self.num_positions}")
        by_replica = sum(self.committed_by.values())
        if by_replica != self.committed.total:
            raise LeaseError(
                f"accounting: replicas committed {by_replica}, the table {self.committed.total}"
            )
        spans = sum(len(held.span) for held in self._leases.values())
        if spans != self._leased:
            raise LeaseError(f"accounting: leases hold {spans}, the table counts {self._leased}")
