"""The sets and counts of intervals against sets and counts of single positions."""

import json
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pww.errors import LeaseError
from pww.lease.attempts import Attempts
from pww.lease.span import IntervalSet


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

    @rule(start=st.integers(0, 30), size=st.integers(1, 8))
    def meet(self, start: int, size: int) -> None:
        some = set(range(start, start + size))
        assert self.spans.meets(start, start + size) == bool(some & self.model)

    @rule()
    def through_json(self) -> None:
        self.spans = IntervalSet.from_flat(json.loads(json.dumps(self.spans.flat())))

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


class Counts(RuleBasedStateMachine):
    """The counts of attempts against a list."""

    @initialize()
    def start(self) -> None:
        self.attempts, self.model = Attempts(), [0] * 24

    @rule(start=st.integers(0, 23), size=st.integers(0, 8), by=st.sampled_from([1, 1, 2, -1]))
    def change(self, start: int, size: int, by: int) -> None:
        stop = min(24, start + size)
        if min(self.model[start:stop], default=1) + by < 0:
            with pytest.raises(LeaseError, match="was attempted 0 times, not 1"):
                self.attempts.change(start, stop, by=by)
            return
        self.attempts.change(start, stop, by=by)
        self.model[start:stop] = [count + by for count in self.model[start:stop]]

    @rule(start=st.integers(0, 23), size=st.integers(1, 8))
    def forget(self, start: int, size: int) -> None:
        stop = min(24, start + size)
        self.attempts.forget(start, stop)
        self.model[start:stop] = [0] * (stop - start)

    @rule(start=st.integers(0, 23), size=st.integers(1, 24), limit=st.integers(1, 4))
    def reaching(self, start: int, size: int, limit: int) -> None:
        stop = min(24, start + size)
        over = [p for p in range(start, stop) if self.model[p] >= limit]
        found = self.attempts.reaching(start, stop, limit=limit)
        if not over:
            assert found is None
            return
        low = high = over[0]
        while high in over:
            high += 1
        assert found == (low, high)

    @rule()
    def through_json(self) -> None:
        self.attempts = Attempts.from_flat(json.loads(json.dumps(self.attempts.flat())))

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "model"):
            return
        assert [self.attempts.count(p) for p in range(24)] == self.model
        runs = list(self.attempts)
        assert all(count > 0 and start < stop for start, stop, count in runs)
        assert all(a[1] < b[0] or a[1:] != b[:1] + b[2:] for a, b in pairwise(runs)), "maximal"
        assert len(self.attempts) == len(runs)


Counts.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestCounts = Counts.TestCase
