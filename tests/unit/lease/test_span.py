"""The interval set's edges; its laws are a property test."""

import pytest

from pww.errors import LeaseError
from pww.lease.span import IntervalSet
from pww.wire import Span


def test_neighbours_are_joined_and_split() -> None:
    spans = IntervalSet()
    assert list(spans) == []
    for span in (Span(0, 2), Span(6, 8), Span(2, 4), Span(4, 6)):
        spans.add(span.start, span.stop)
    assert list(spans) == [Span(0, 8)]
    spans.remove(3, 5)
    assert list(spans) == [Span(0, 3), Span(5, 8)]
    assert (len(spans), spans.total) == (2, 6)


@pytest.mark.parametrize("span", [Span(0, 5), Span(3, 9), Span(4, 5), Span(8, 20), Span(2, 30)])
def test_what_is_in_is_not_added_again(span: Span) -> None:
    spans = IntervalSet()
    spans.add(4, 9)
    with pytest.raises(LeaseError, match="in the set already"):
        spans.add(span.start, span.stop)
    assert list(spans) == [Span(4, 9)]


@pytest.mark.parametrize("span", [Span(0, 5), Span(3, 9), Span(8, 10), Span(20, 21)])
def test_what_is_not_in_is_not_removed(span: Span) -> None:
    spans = IntervalSet()
    spans.add(4, 9)
    with pytest.raises(LeaseError, match="not in the set"):
        spans.remove(span.start, span.stop)
    assert list(spans) == [Span(4, 9)]


@pytest.mark.parametrize(("start", "stop"), [(3, 3), (5, 4), (20, 20)])
def test_an_empty_run_is_neither_added_nor_removed(start: int, stop: int) -> None:
    spans = IntervalSet()
    spans.add(0, 10)
    spans.add(12, 20)
    with pytest.raises(LeaseError, match="is empty or in the set already"):
        spans.add(start, stop)
    with pytest.raises(LeaseError, match="is empty or not in the set"):
        spans.remove(start, stop)
    assert not spans.covers(start, stop)
    assert not spans.meets(start, stop)
    assert spans.flat() == [0, 10, 12, 20]


@pytest.mark.parametrize("bounds", [[0], [0, 0], [5, 3], [0, 4, 4, 8], [0, 4, 2, 8], [-1, 4]])
def test_bounds_that_do_not_rise_are_no_set(bounds: list[int]) -> None:
    with pytest.raises(LeaseError, match="interval bounds do not rise; the snapshot is damaged"):
        IntervalSet.from_flat(bounds)


def test_what_is_removed_whole_leaves_no_empty_interval() -> None:
    spans = IntervalSet.from_flat([0, 2, 4, 6, 8, 10])
    for start in (4, 0, 8):
        spans.remove(start, start + 2)
    assert (list(spans), spans.total) == ([], 0)
