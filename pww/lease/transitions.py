"""How the lease table changes: by events that were made durable, and by renewals within promises.

UNASSIGNED --granted, revived--> LEASED --committed--> COMMITTED
   |  ^---returned, shrunk---------'
   '--quarantined--> QUARANTINED
"""

from math import inf
from typing import assert_never

from pww.errors import LeaseError
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
from pww.lease.state import TableState

RECLAIMED: tuple[Reason, ...] = ("expired", "taken over")
"""Reasons that count as an attempt when work may have begun: its holder fell silent or died."""


class Transitions(TableState):
    """The books and what may happen to them."""

    def apply(self, event: Event, now_s: float) -> None:
        """Makes one transition.

        Raises:
            LeaseError: the event does not follow from this state: its journal is damaged.
        """
        try:
            match event:  # the most frequent first: a pattern costs as much as a dict's look-up
                case Granted():
                    self._granted(event, now_s)
                case Pinned():
                    self._pin(event.lease, event.delta)
                case Committed():
                    self._commit(event)
                case Raised():
                    self._raise(event)
                case Promised():
                    self._promised_s[self._leases[event.lease].id] = event.ttl_s
                case Returned():
                    self._return(event)
                case Revived():
                    self._revive(event, now_s)
                case Shrunk():
                    self._shrink(event)
                case Unpinned():
                    self._unpin(event.lease)
                case Quarantined():
                    self.unassigned.remove(event.start, event.stop)
                    self._lapsed.forget(event.start, event.stop)
                    self.quarantined.add(event.start, event.stop)
                case _:
                    assert_never(event)
        except (LeaseError, KeyError, TypeError, ValueError) as why:
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
        self._soonest_s = min(self._deadline_s.values(), default=inf)

    # ------------------------------------------------------------------------------ one event each

    def _granted(self, event: Granted, now_s: float) -> None:
        lease, replica, start, stop, watermark, ttl_s = event
        if lease < self._next_id:
            raise LeaseError(f"lease id {lease} was used before")
        if not start <= watermark <= stop:
            raise LeaseError(f"watermark {watermark} is outside the lease")
        self.unassigned.remove(start, stop)
        if self._lapsed:
            self._lapsed.forget(start, stop)
        self._hold(Held(lease, replica, start, stop, watermark), ttl_s, now_s + ttl_s)
        self._next_id = lease + 1

    def _revive(self, event: Revived, now_s: float) -> None:
        """Everything as before its expiry, which is no attempt after all."""
        held = self._lapsed[event.lease]
        self.unassigned.remove(held.start, held.stop)
        self._lapsed.forget(held.start, held.stop)
        self.attempts.change(held.start, held.watermark, by=-1)
        self._hold(held, event.ttl_s, now_s + event.ttl_s)

    def _raise(self, event: Raised) -> None:
        held = self._leases[event.lease]
        if not held.watermark < event.watermark <= held.stop:
            raise LeaseError(f"{held} cannot be raised to {event.watermark}")
        self._leases[held.id] = held._replace(watermark=event.watermark)

    def _shrink(self, event: Shrunk) -> None:
        held = self._leases[event.lease]
        if not max(held.start + 1, held.watermark) <= event.stop < held.stop:
            raise LeaseError(f"{held} cannot end at {event.stop}")
        self.unassigned.add(event.stop, held.stop)
        self._leased -= held.stop - event.stop
        self._leases[held.id] = held._replace(stop=event.stop)

    def _pin(self, lease: int, delta: str) -> None:
        id_, replica, start, stop, watermark, pinned = self._leases[lease]
        if pinned:
            raise LeaseError(f"lease {lease} is pinned already")
        if watermark != stop:
            raise LeaseError(f"work on lease {lease} was authorised up to {watermark} only")
        self._leases[lease] = Held(id_, replica, start, stop, watermark, delta)
        if delta in self._by_delta:
            self._by_delta[delta].append(lease)
        else:
            self._by_delta[delta] = [lease]

    def _unpin(self, lease: int) -> None:
        held = self._leases[lease]
        self._forget_pin(held)
        self._leases[lease] = held._replace(pinned="")
        self._soonest_s = min(self._soonest_s, self._deadline_s[lease])

    def _return(self, event: Returned) -> None:
        held = self._leases[event.lease]
        if event.reason == "stolen" and held.watermark > held.start:
            raise LeaseError(f"{held} is authorised up to {held.watermark}, not to be stolen")
        if held.pinned and event.reason != "rejected":
            raise LeaseError(f"{held} returns by a verdict only")
        self._drop(held)
        self.unassigned.add(held.start, held.stop)
        if event.reason in RECLAIMED:
            self.attempts.change(held.start, held.watermark, by=1)
        if event.reason == "expired":
            self._lapsed.add(held)

    def _commit(self, event: Committed) -> None:
        lease, delta, replica, start, stop = event
        held = self._leases[lease]
        if (delta, replica, start, stop) != (held.pinned, held.replica, held.start, held.stop):
            raise LeaseError(f"lease {lease} is {held}")
        self._drop(held)
        self.committed.add(start, stop)
        if self.attempts:
            self.attempts.forget(start, stop)
        self.committed_by[replica] = self.committed_by.get(replica, 0) + stop - start

    def _drop(self, held: Held) -> None:
        """Takes a live lease out of every index."""
        lease = held.id
        if held.pinned:
            self._forget_pin(held)
        del self._leases[lease], self._deadline_s[lease], self._promised_s[lease]
        self._leased -= held.stop - held.start

    def _forget_pin(self, held: Held) -> None:
        pinned = self._by_delta[held.pinned]
        pinned.remove(held.id)
        if not pinned:
            del self._by_delta[held.pinned]
