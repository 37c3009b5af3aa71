"""Who holds which positions: a pure state machine of intervals, changed by events only.

`decide_*` looks and returns events, `apply` is the only thing that changes who holds what, `renew`
moves a deadline within what was promised. The caller makes events durable between the two, so a
replayed journal gives the same table. Time is an argument. Memory and cost follow live leases and
fragments, never the number of positions.

Work may start below a lease's watermark only, and only what is beyond it may be stolen: whatever
happens to messages, no position is drawn by two holders. A lease that expired is remembered until
somebody else gets one of its positions, or quarantine does: until then it is still its replica's
and can be revived by a heartbeat, a registration or a delta.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from pww.errors import LeaseError
from pww.lease import steal
from pww.lease.events import (
    Committed,
    Event,
    Granted,
    Pinned,
    Promised,
    Quarantined,
    Raised,
    Reason,
    Returned,
    Revived,
    Shrunk,
    Unpinned,
)
from pww.lease.held import Held
from pww.lease.transitions import Transitions
from pww.wire import Leased

PROMISE_HEADROOM = 1.25
"""A promise in the journal exceeds the renewal that made it, so that few renewals make another."""


class LeaseTable(Transitions):
    """The lease table: `max_attempts` reclaims of begun work quarantine a position, 0 never."""

    # ------------------------------------------------------------------- positions change hands

    def decide_grant(
        self, replica: str, *, num_blocks: int, ttl_s: float, ahead: bool = False
    ) -> tuple[Event, ...]:
        """One lease on the lowest free positions, at most `num_blocks` of one epoch and one run.

        Positions in its way that were attempted too often are set aside first. The last event is
        the grant, absent when nothing else is free. `ahead`: no work is authorised yet.
        """
        free = self.unassigned
        if not free.starts:
            return ()
        start, end = free.starts[0], free.stops[0]
        aside: list[Event] = []
        if self.max_attempts and self.attempts:
            start, end = self._pass_attempted(aside)
            if start == end:
                return tuple(aside)
        stop = start + num_blocks
        if stop > end:
            stop = end
        epoch_end = start - start % self._epoch + self._epoch
        if stop > epoch_end:
            stop = epoch_end
        granted = Granted(self._next_id, replica, start, stop, start if ahead else stop, ttl_s)
        return (*aside, granted) if aside else (granted,)

    def _pass_attempted(self, aside: list[Event]) -> tuple[int, int]:
        """The first free run without positions to quarantine; those before it go to `aside`."""
        free, limit = self.unassigned, self.max_attempts
        for start, end in zip(free.starts, free.stops, strict=True):
            while start < end:
                over = self.attempts.reaching(start, end, limit=limit)
                if over is None:
                    return start, end
                if over[0] > start:
                    return start, over[0]
                aside.append(Quarantined(*over))
                start = over[1]
        return 0, 0

    def decide_steal(
        self, thief: str, *, num_blocks: int, ttl_s: float, rates: Mapping[str, float]
    ) -> tuple[Event, ...]:
        """The unauthorised tail of the lease that will finish last becomes the thief's, started.

        `rates`: measured speed by replica; see `steal.choose`. Nothing when nobody has a tail.
        """
        loot = steal.choose(self._leases.values(), thief, num_blocks=num_blocks, rates=rates)
        if loot is None:
            return ()
        victim, start = loot
        freed = Shrunk(victim.id, start) if start > victim.start else Returned(victim.id, "stolen")
        return freed, Granted(self._next_id, thief, start, victim.stop, victim.stop, ttl_s)

    def decide_expiry(self, now_s: float) -> tuple[Event, ...]:
        """Returns every lease whose deadline has come; a pinned one never expires."""
        if now_s < self._soonest_s:
            return ()
        events: list[Event] = []
        soonest_s = inf
        for held in self._leases.values():
            if not held.pinned:
                deadline_s = self._deadline_s[held.id]
                soonest_s = min(soonest_s, deadline_s)
                if deadline_s <= now_s:
                    events.append(Returned(held.id, "expired"))
        self._soonest_s = soonest_s
        return tuple(events)

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

    # ------------------------------------------------------------------- what a holder is promised

    def decide_raise(self, leases: Collection[int], *, replica: str) -> tuple[Event, ...]:
        """Authorises work on the whole of those of `leases` that are live and this replica's."""
        found = (self.find(lease, replica=replica) for lease in dict.fromkeys(leases))
        return tuple(Raised(held.id, held.stop) for held in found if held and not held.started)

    def decide_promise(self, lease: int, *, ttl_s: float) -> tuple[Event, ...]:
        """What must be durable before the live lease may be renewed for `ttl_s`; mostly nothing."""
        if ttl_s <= self._promised_s[lease]:
            return ()
        return (Promised(lease, ttl_s * PROMISE_HEADROOM),)

    # --------------------------------------------------------------------- a delta and its verdict

    def decide_pin(
        self, delta: str, *, replica: str, spans: Sequence[Leased], ttl_s: float
    ) -> tuple[Event, ...]:
        """Pins every lease that a delta names, or none.

        Raises:
            LeaseError: one of them is not this replica's (any more), has another span, was not
            authorised to its end, or is pinned.
        """
        events: list[Event] = []
        if len(spans) > 1 and len({leased.lease for leased in spans}) != len(spans):
            raise LeaseError("a lease is named twice; name each once")
        for leased in spans:
            lease, span = leased.lease, leased.span
            held = self._leases.get(lease)
            if held is None:
                held = self._lapsed.get(lease)
                if held is not None:
                    events.append(Revived(lease, ttl_s))
            if held is None or held.replica != replica:
                raise LeaseError(
                    f"lease {lease} is not {replica}'s: it expired and its blocks were leased "
                    "again, or it was returned, stolen or committed; acquire again"
                )
            if held.start != span.start or held.stop != span.stop:
                raise LeaseError(
                    f"lease {lease} holds [{held.start}, {held.stop}), the delta names "
                    f"[{span.start}, {span.stop}); train exactly what is leased"
                )
            if held.watermark != held.stop:
                raise LeaseError(
                    f"lease {lease} was taken ahead and its watermark is {held.watermark} of "
                    f"[{held.start}, {held.stop}): work on it was never authorised; have the "
                    "watermark raised before a phase starts"
                )
            if held.pinned:
                raise LeaseError(
                    f"lease {lease} belongs to delta {held.pinned}, which has no verdict yet; "
                    "wait for it"
                )
            events.append(Pinned(lease, delta))
        return tuple(events)

    def decide_commit(self, delta: str) -> tuple[Event, ...]:
        """Commits every lease that the delta pins."""
        return tuple(
            [
                Committed(held.id, delta, held.replica, held.start, held.stop)
                for held in self._pinned(delta)
            ]
        )

    def decide_reject(self, delta: str, *, keep: Collection[int] = ()) -> tuple[Event, ...]:
        """Returns every lease that the delta pins; those in `keep` stay leased, without the pin."""
        return tuple(
            Unpinned(held.id) if held.id in keep else Returned(held.id, "rejected")
            for held in self._pinned(delta)
        )

    def _pinned(self, delta: str) -> list[Held]:
        """In order of id, so that a table that was loaded from a snapshot decides the same."""
        leases = self._by_delta.get(delta, ())
        if len(leases) == 1:
            return [self._leases[leases[0]]]
        return [self._leases[lease] for lease in sorted(leases)]
