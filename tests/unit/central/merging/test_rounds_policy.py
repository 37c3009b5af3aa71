"""When a round closes, case by case."""

import pytest

from pww.central.rounds_policy import GRACE_FLOOR_S, grace_s, has_quorum, is_due, quorum_size


@pytest.mark.parametrize(
    ("num", "quorum", "size"),
    [(1, 0.0, 1), (1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (4, 0.5, 2), (5, 0.5, 3), (3, 1.0, 3),
     (100, 0.07, 7), (100, 0.57, 57), (3, 0.34, 2)],
)  # fmt: skip
def test_a_quorum_is_a_share_rounded_up(num, quorum, size):
    assert quorum_size(num, quorum) == size


def test_a_quorum_counts_each_replica_once_whether_expected_or_not():
    assert has_quorum(expected=["a", "b"], delivered=["a"], quorum=0.5)
    assert not has_quorum(expected=["b", "c"], delivered=["a", "a"], quorum=0.5)
    assert has_quorum(expected=[], delivered=["a"], quorum=1.0)


@pytest.mark.parametrize(
    ("published", "phase", "expected"),
    [
        (100.0, 90.0, 9.0),
        (100.0, 500.0, 10.0),  # a phase cannot have been longer than the round
        (36_000.0, 50.0, 5.0),  # an idle night is not part of the round
        (5.0, 5.0, GRACE_FLOOR_S),
        (0.0, 0.0, GRACE_FLOOR_S),
    ],
)
def test_the_grace_window_is_a_share_of_the_rounds_length(published, phase, expected):
    window = grace_s(since_publish_s=published, longest_phase_s=phase, grace=0.1)
    assert window == pytest.approx(expected)


def due(expected, delivered, waited=0.0):
    return is_due(expected=expected, delivered=delivered, quorum=0.5, waited_s=waited, grace_s=10.0)


def test_a_round_is_due_when_all_delivered_or_a_quorum_waited_long_enough():
    assert not due([], [])
    assert not due(["a"], [], waited=1e9)
    assert due([], ["a"])
    assert due(["a"], ["a"])  # it works on its next lease already
    assert not due(["b"], ["a"], waited=9.9)
    assert due(["b"], ["a"], waited=10.0)
    assert not due(["b", "c"], ["a"], waited=1e9)
    assert due(["c"], ["a", "b"], waited=10.0)
