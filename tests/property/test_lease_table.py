"""The table against a naive model with one entry for each block, under any sequence of events."""

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pww.errors import LeaseError
from pww.lease.events import Event, Granted, from_record, to_record
from pww.lease.span import IntervalSet
from pww.lease.table import LeaseTable
from pww.wire import Leased, Span

REPLICAS = ("s/a", "s/b", "s/c")


class Machine(RuleBasedStateMachine):
    """`owner[p]`: 0 unassigned, -1 committed, a lease id otherwise."""

    @initialize(epoch=st.integers(1, 12), epochs=st.integers(1, 3))
    def start(self, epoch: int, epochs: int) -> None:
        self.epoch, self.size = epoch, epoch * epochs
        self.table = LeaseTable(self.size, epoch_positions=epoch)
        self.now_s = 0.0
        self.owner = [0] * self.size
        self.holder: dict[int, str] = {}  # every lease ever granted
        self.span: dict[int, Span] = {}
        self.deadline_s: dict[int, float] = {}
        self.pinned: dict[int, str] = {}
        self.lapsed: set[int] = set()
        self.count = dict.fromkeys(REPLICAS, 0)
        self.journal: list[tuple[dict[str, object], float]] = []
        self.num_deltas = 0

    def apply(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self.table.apply(event, self.now_s)
            self.journal.append((to_record(event), self.now_s))

    def live(self, lease: int) -> bool:
        return lease in self.owner

    def fill(self, lease: int, value: int) -> None:
        span = self.span[lease]
        self.owner[span.start : span.stop] = [value] * len(span)

    def lapse_check(self) -> None:
        self.lapsed = {
            i
            for i in self.lapsed
            if all(o == 0 for o in self.owner[self.span[i].start : self.span[i].stop])
        }

    @rule(replica=st.sampled_from(REPLICAS), blocks=st.integers(1, 6), ttl_s=st.integers(1, 9))
    def grant(self, replica: str, blocks: int, ttl_s: int) -> None:
        events = self.table.decide_grant(replica, num_blocks=blocks, ttl_s=float(ttl_s))
        if 0 not in self.owner:
            assert events == ()
            return
        (event,) = events
        assert isinstance(event, Granted)
        start = self.owner.index(0)
        stop = start
        while (
            stop < self.size
            and self.owner[stop] == 0
            and stop - start < blocks
            and stop // self.epoch == start // self.epoch
        ):
            stop += 1
        assert event == Granted(max(self.holder, default=0) + 1, replica, start, stop, stop, ttl_s)
        self.apply((event,))
        self.holder[event.lease], self.span[event.lease] = replica, Span(start, stop)
        self.deadline_s[event.lease] = self.now_s + ttl_s
        self.fill(event.lease, event.lease)
        self.lapse_check()

    @rule(seconds=st.integers(0, 6))
    def expire(self, seconds: int) -> None:
        self.now_s += seconds
        self.apply(self.table.decide_expiry(self.now_s))
        for lease in set(self.owner) - {0, -1}:
            if lease not in self.pinned and self.deadline_s[lease] <= self.now_s:
                self.fill(lease, 0)
                self.lapsed.add(lease)

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.holder)), label="lease")

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), replica=st.sampled_from(REPLICAS))
    def give_back(self, data: st.DataObject, replica: str) -> None:
        lease = self.pick(data)
        events = self.table.decide_return([lease], replica=replica, reason="released")
        his = self.live(lease) and self.holder[lease] == replica and lease not in self.pinned
        assert len(events) == his
        self.apply(events)
        if his:
            self.fill(lease, 0)

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), replica=st.sampled_from(REPLICAS))
    def revive(self, data: st.DataObject, replica: str) -> None:
        lease = self.pick(data)
        events = self.table.decide_revive([lease], replica=replica, ttl_s=5.0)
        his = lease in self.lapsed and self.holder[lease] == replica
        assert len(events) == his
        self.apply(events)
        if his:
            self.fill(lease, lease)
            self.lapsed.remove(lease)
            self.deadline_s[lease] = self.now_s + 5.0

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), ttl_s=st.integers(0, 20))
    def renew(self, data: st.DataObject, ttl_s: int) -> None:
        lease = self.pick(data)
        if self.table.find(lease, replica=self.holder[lease]) is not None:
            self.apply(self.table.decide_promise(lease, ttl_s=float(ttl_s)))
            self.table.renew(lease, ttl_s=float(ttl_s), now_s=self.now_s)
            self.deadline_s[lease] = max(self.deadline_s[lease], self.now_s + ttl_s)

    @precondition(lambda self: self.holder)
    @rule(data=st.data(), replica=st.sampled_from(REPLICAS), shrink=st.booleans())
    def pin(self, data: st.DataObject, replica: str, shrink: bool) -> None:
        leases = data.draw(
            st.lists(st.sampled_from(sorted(self.holder)), min_size=1, max_size=3), label="leases"
        )
        spans = [Leased(lease=i, span=self.span[i]) for i in leases]
        if shrink and len(spans[0].span) > 1:
            span = spans[0].span
            spans[0] = Leased(lease=leases[0], span=Span(span.start, span.stop - 1))
        ok = (
            len(set(leases)) == len(leases)
            and all(leased.span == self.span[leased.lease] for leased in spans)
            and all(self.holder[i] == replica and i not in self.pinned for i in leases)
            and all(self.live(i) or i in self.lapsed for i in leases)
        )
        delta = f"{self.num_deltas:032x}"
        if not ok:
            with pytest.raises(LeaseError):
                self.table.decide_pin(delta, replica=replica, spans=spans, ttl_s=5.0)
            return
        self.num_deltas += 1
        self.apply(self.table.decide_pin(delta, replica=replica, spans=spans, ttl_s=5.0))
        for lease in leases:
            if lease in self.lapsed:
                self.lapsed.remove(lease)
                self.fill(lease, lease)
                self.deadline_s[lease] = self.now_s + 5.0
            self.pinned[lease] = delta

    @precondition(lambda self: self.pinned)
    @rule(data=st.data(), outcome=st.sampled_from(["merge", "reject", "keep"]))
    def verdict(self, data: st.DataObject, outcome: str) -> None:
        delta = data.draw(st.sampled_from(sorted(set(self.pinned.values()))), label="delta")
        leases = [i for i, d in self.pinned.items() if d == delta]
        if outcome == "merge":
            self.apply(self.table.decide_commit(delta))
        else:
            keep = leases if outcome == "keep" else []
            self.apply(self.table.decide_reject(delta, keep=keep))
        for lease in leases:
            del self.pinned[lease]
            if outcome == "merge":
                self.count[self.holder[lease]] += len(self.span[lease])
                self.fill(lease, -1)
            elif outcome == "reject":
                self.fill(lease, 0)

    @invariant()
    def same_as_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.verify()
        got = [0] * self.size
        for held in self.table.leases():
            got[held.span.start : held.span.stop] = [held.id] * len(held.span)
            assert held.replica == self.holder[held.id]
            assert held.watermark == held.span.stop
            assert held.pinned == self.pinned.get(held.id, "")
            left_s = self.table.remaining_s(held.id, self.now_s)
            assert left_s == max(0.0, self.deadline_s[held.id] - self.now_s)
        for span in self.table.committed:
            got[span.start : span.stop] = [-1] * len(span)
        assert got == self.owner
        assert self.table.committed_by == {r: n for r, n in self.count.items() if n}
        assert self.table.complete == all(o == -1 for o in self.owner)

    def teardown(self) -> None:
        """The journal alone leads to the same table, and no lease ends before its holder thinks."""
        if not hasattr(self, "table"):
            return
        again = LeaseTable(self.size, epoch_positions=self.epoch)
        for record, now_s in self.journal:
            again.apply(from_record(dict(record)), now_s)
        again.verify()
        assert list(again.leases()) == list(self.table.leases())
        assert list(again.committed) == list(self.table.committed)
        assert list(again.unassigned) == list(self.table.unassigned)
        assert again.dump() == self.table.dump()
        again.restore(now_s=self.now_s, grace_s=0.0)
        for held in again.leases():
            left_s = self.table.remaining_s(held.id, self.now_s)
            assert again.remaining_s(held.id, self.now_s) >= left_s


Machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTable = Machine.TestCase


class Intervals(RuleBasedStateMachine):
    """The interval set against a set of integers."""

    @initialize()
    def start(self) -> None:
        self.spans, self.model = IntervalSet(), set[int]()

    @rule(start=st.integers(0, 30), size=st.integers(1, 8))
    def add(self, start: int, size: int) -> None:
        some = set(range(start, start + size))
        if some & self.model:
            with pytest.raises(LeaseError):
                self.spans.add(start, start + size)
        else:
            self.spans.add(start, start + size)
            self.model |= some

    @rule(start=st.integers(0, 30), size=st.integers(1, 8))
    def remove(self, start: int, size: int) -> None:
        some = set(range(start, start + size))
        assert self.spans.covers(start, start + size) == (some <= self.model)
        if some <= self.model:
            self.spans.remove(start, start + size)
            self.model -= some
        else:
            with pytest.raises(LeaseError):
                self.spans.remove(start, start + size)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "spans"):
            return
        spans = list(self.spans)
        assert [p for s in spans for p in range(s.start, s.stop)] == sorted(self.model)
        assert all(a.stop < b.start for a, b in pairwise(spans)), "maximal"
        assert self.spans.total == len(self.model)


Intervals.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestIntervals = Intervals.TestCase
