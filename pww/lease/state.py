"""What the lease table holds: looking at it, the laws it must obey, and its snapshot.

A snapshot holds no deadline: those are times of one process' clock. It holds what was promised, as
seconds, so that `LeaseTable.restore` gives every lease what its holder may still count on.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Self

from pww.errors import LeaseError
from pww.lease.attempts import Attempts
from pww.lease.held import Held, Lapsed
from pww.lease.span import IntervalSet

SNAPSHOT_VERSION = 1


class TableState:
    """The lease table's books over `num_positions` positions in epochs of `epoch_positions`."""

    def __init__(self, num_positions: int, *, epoch_positions: int, max_attempts: int = 0) -> None:
        self.num_positions = num_positions
        self.max_attempts = max_attempts
        self.unassigned = IntervalSet()
        self.unassigned.add(0, num_positions)
        self.committed = IntervalSet()
        self.quarantined = IntervalSet()
        self.attempts = Attempts()
        self.committed_by: dict[str, int] = {}
        self._epoch = epoch_positions
        self._leases: dict[int, Held] = {}
        self._deadline_s: dict[int, float] = {}
        self._promised_s: dict[int, float] = {}  # no holder counts on more time from a renewal
        self._soonest_s = inf  # no unpinned lease ends before it
        self._leased = 0
        self._lapsed = Lapsed()
        self._by_delta: dict[str, list[int]] = {}
        self._next_id = 1

    # ------------------------------------------------------------------------------------- looking

    @property
    def leased(self) -> int:
        """Positions under live leases."""
        return self._leased

    @property
    def complete(self) -> bool:
        """Whether every position is committed or quarantined: nothing will ever be leased again."""
        return self.committed.total + self.quarantined.total == self.num_positions

    def leases(self, replica: str = "") -> Iterator[Held]:
        """Live leases, oldest first; of one replica if named."""
        return (held for held in self._leases.values() if replica in ("", held.replica))

    def started(self, replica: str) -> Iterator[Held]:
        """Its live leases that await work or a delta: authorised up to their end, not pinned."""
        return (held for held in self.leases(replica) if held.started and not held.pinned)

    def find(self, lease: int, *, replica: str) -> Held | None:
        """The live lease, if it is this replica's."""
        held = self._leases.get(lease)
        return held if held is not None and held.replica == replica else None

    def remaining_s(self, lease: int, now_s: float) -> float:
        """Seconds until the live lease expires unless it is renewed."""
        return max(0.0, self._deadline_s[lease] - now_s)

    # ------------------------------------------------------------------------------------ snapshot

    def dump(self) -> dict[str, object]:
        """Everything but deadlines as JSON-safe values; `load` is its inverse."""
        return {
            "version": SNAPSHOT_VERSION,
            "positions": self.num_positions,
            "epoch": self._epoch,
            "next_id": self._next_id,
            "unassigned": self.unassigned.flat(),
            "committed": self.committed.flat(),
            "quarantined": self.quarantined.flat(),
            "attempts": self.attempts.flat(),
            "committed_by": dict(self.committed_by),
            "leases": [[*held, self._promised_s[held.id]] for held in self._leases.values()],
            "lapsed": [list(held) for held in self._lapsed],
        }

    @classmethod
    def load(cls, dump: Mapping[str, Any], *, max_attempts: int = 0) -> Self:
        """The table that was dumped; no lease of it expires before `restore` sets deadlines.

        The laws are for the caller to `verify`.

        Raises:
            LeaseError: this is no dump, or one of another version of pww.
        """
        try:
            if dump["version"] != SNAPSHOT_VERSION:
                raise ValueError(f"version {dump['version']}, not {SNAPSHOT_VERSION}")
            table = cls(dump["positions"], epoch_positions=dump["epoch"], max_attempts=max_attempts)
            table._next_id = dump["next_id"]
            table.unassigned = IntervalSet.from_flat(dump["unassigned"])
            table.committed = IntervalSet.from_flat(dump["committed"])
            table.quarantined = IntervalSet.from_flat(dump["quarantined"])
            table.attempts = Attempts.from_flat(dump["attempts"])
            table.committed_by = dict(dump["committed_by"])
            for *fields, promised_s in dump["leases"]:
                table._hold(Held(*fields), promised_s, inf)
            table._lapsed = Lapsed([Held(*fields) for fields in dump["lapsed"]])
        except (KeyError, TypeError, ValueError, LeaseError) as why:
            raise LeaseError(
                f"no snapshot of a lease table ({why}); it is damaged or of another pww: replay "
                "the journal from its beginning"
            ) from why
        return table

    def _hold(self, held: Held, promised_s: float, deadline_s: float) -> None:
        """Enters a live lease in every index."""
        lease = held.id
        self._leases[lease] = held
        self._promised_s[lease] = promised_s
        self._deadline_s[lease] = deadline_s
        if deadline_s < self._soonest_s:
            self._soonest_s = deadline_s
        self._leased += held.stop - held.start
        if held.pinned:
            self._by_delta.setdefault(held.pinned, []).append(lease)

    # ----------------------------------------------------------------------------------- verifying

    def verify(self) -> None:
        """Checks completeness, disjointness, accounting and authority.

        Raises:
            LeaseError: one of them does not hold: a bug of ours, or a damaged journal.
        """
        self._verify_states()
        self._verify_leases()
        by_replica = sum(self.committed_by.values())
        if by_replica != self.committed.total:
            raise LeaseError(
                f"accounting: replicas committed {by_replica}, the table {self.committed.total}"
            )
        for start, stop, _ in self.attempts:
            if self.committed.meets(start, stop):
                raise LeaseError(f"attempts: [{start}, {stop}) is counted though it is committed")

    def _verify_states(self) -> None:
        """Every position is in exactly one state."""
        parts = [(held.start, held.stop, f"lease {held.id}") for held in self._leases.values()]
        for name in ("unassigned", "committed", "quarantined"):
            spans: IntervalSet = getattr(self, name)
            parts += [(a, b, name) for a, b in zip(spans.starts, spans.stops, strict=True)]
        end, owner = 0, "the start"
        for start, stop, name in sorted(parts):
            if start < end:
                raise LeaseError(f"disjointness: position {start} is in {owner} and in {name}")
            if start > end:
                raise LeaseError(f"completeness: [{end}, {start}) is in no state")
            end, owner = stop, name
        if end != self.num_positions:
            raise LeaseError(f"completeness: states end at {end} of {self.num_positions}")

    def _verify_leases(self) -> None:
        """Leases stay within an epoch, watermarks within leases, counts are right."""
        for held in (*self._leases.values(), *self._lapsed):
            if not held.start <= held.watermark <= held.stop or (held.pinned and not held.started):
                raise LeaseError(f"authority: {held} has a watermark outside, or a delta too early")
            if held.start // self._epoch != (held.stop - 1) // self._epoch:
                raise LeaseError(f"epochs: {held} straddles two of {self._epoch} positions")
            if held.id >= self._next_id:
                raise LeaseError(f"accounting: {held} exists, the next lease is {self._next_id}")
        for held in self._lapsed:
            if not self.unassigned.covers(held.start, held.stop):
                raise LeaseError(f"lapsed: {held} is remembered though somebody got of it")
        spans = sum(held.size for held in self._leases.values())
        if spans != self._leased:
            raise LeaseError(f"accounting: leases hold {spans}, the table counts {self._leased}")
