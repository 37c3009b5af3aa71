"""The counts of attempts at their edges; their laws are a property test."""

import pytest

from pww.errors import LeaseError
from pww.lease.attempts import Attempts


def test_equal_neighbours_are_joined() -> None:
    attempts = Attempts()
    attempts.change(0, 4, by=1)
    attempts.change(4, 8, by=1)
    attempts.change(2, 6, by=1)
    assert list(attempts) == [(0, 2, 1), (2, 6, 2), (6, 8, 1)]
    attempts.change(2, 6, by=-1)
    assert attempts.flat() == [0, 8, 1]
    attempts.forget(3, 5)
    assert list(attempts) == [(0, 3, 1), (5, 8, 1)]
    assert [attempts.count(p) for p in (0, 2, 3, 5, 8)] == [1, 1, 0, 1, 0]


def test_the_first_run_that_reaches_a_limit_spans_counts() -> None:
    attempts = Attempts.from_flat([0, 2, 1, 2, 4, 2, 4, 6, 5, 8, 9, 7])
    assert attempts.reaching(0, 20, limit=2) == (2, 6)
    assert attempts.reaching(3, 5, limit=2) == (3, 5)
    assert attempts.reaching(6, 20, limit=2) == (8, 9)
    assert attempts.reaching(0, 20, limit=8) is None


def test_a_count_is_never_negative() -> None:
    attempts = Attempts.from_flat([2, 4, 1])
    with pytest.raises(LeaseError, match=r"\[4, 5\) was attempted 0 times, not 1"):
        attempts.change(2, 5, by=-1)
    assert attempts.flat() == [2, 4, 1]


@pytest.mark.parametrize(
    "flat",
    [[0], [0, 1], [3, 3, 1], [4, 3, 1], [0, 4, 0], [0, 4, -1], [0, 4, 1, 3, 5, 1], [-2, 1, 1]],
)
def test_what_is_no_list_of_counts_is_damage(flat: list[int]) -> None:
    with pytest.raises(LeaseError, match="counts of attempts are out of order; the snapshot is"):
        Attempts.from_flat(flat)
