"""One phase: whole blocks, at most H steps, every window once, and its stretch of the schedule."""

from pathlib import Path

import pytest

from pww.config.load import compose
from pww.errors import LeaseError
from pww.lease.space import BlockSpace
from pww.replica.plan import PhasePlan
from pww.transport.exchange import Theta
from pww.wire import Lease, Span

SPACE = BlockSpace(
    num_windows=42, block_windows=4, seed=1, epochs=2, window_tokens=9, corpus="c" * 64
)


def lease(start: int, stop: int) -> Lease:
    return Lease(id=1, replica="a/x", span=Span(start, stop), watermark=22, ttl_s=1.0)


def test_a_plan_follows_the_configuration() -> None:
    config = compose(["diloco.inner_steps=12", "optim.batch_windows=4", "darl.block_windows=4"])
    plan = PhasePlan.of(config, SPACE)
    assert (plan.space, plan.inner_steps, plan.batch_windows) == (SPACE, 12, 4)
    assert plan.num_blocks == 12


@pytest.mark.parametrize(
    ("steps", "batch", "blocks"), [(1, 4, 1), (2, 4, 2), (3, 3, 2), (7, 1, 1), (100, 8, 200)]
)
def test_a_phase_never_takes_more_than_its_steps(steps: int, batch: int, blocks: int) -> None:
    plan = PhasePlan(SPACE, inner_steps=steps, batch_windows=batch)
    assert plan.num_blocks == blocks
    full = lease(0, min(blocks, SPACE.num_positions))
    assert plan.num_steps(full) <= steps


def test_a_phase_without_a_block_is_refused() -> None:
    with pytest.raises(LeaseError, match=r"holds no block of darl\.block_windows=4"):
        _ = PhasePlan(SPACE, inner_steps=3, batch_windows=1).num_blocks


def test_leases_that_cover_the_space_train_every_window_once_an_epoch() -> None:
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4)
    for epoch in range(2):
        windows = []
        for start in range(11 * epoch, 11 * epoch + 11, 2):
            windows += plan.windows(lease(start, min(start + 2, 11 * epoch + 11)))
        assert sorted(windows) == list(range(42))
        assert windows != sorted(windows)


def test_windows_come_in_the_order_of_positions() -> None:
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4)
    assert plan.windows(lease(3, 5)) == [*SPACE.windows(3), *SPACE.windows(4)]


def test_fewer_steps_than_h_are_partial() -> None:
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4)
    short = next(p for p in range(11) if SPACE.size(p) == 2)
    ordinary = next(p for p in range(10) if short not in (p, p + 1, p + 2))
    assert plan.num_steps(lease(ordinary, ordinary + 3)) == 3
    assert not plan.is_partial(lease(ordinary, ordinary + 3))
    assert plan.num_steps(lease(ordinary, ordinary + 2)) == 2
    assert plan.is_partial(lease(ordinary, ordinary + 2))
    # 10 windows are three steps of 4, the last one padded: H steps were taken
    start = max(0, short - 2)
    assert SPACE.num_span_windows(Span(start, start + 3)) == 10
    assert not plan.is_partial(lease(start, start + 3))


def test_progress_is_the_committed_share_and_this_lease_on_top() -> None:
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4)
    short = next(p for p in range(11) if SPACE.size(p) == 2)
    theta = Theta(3, Path("theta"), "f" * 64, None, committed_windows=21)
    assert plan.progress(lease(short, short + 1), theta) == (21 / 84, 23 / 84)
    first = Theta(0, Path("theta"), "f" * 64, None, committed_windows=0)
    assert plan.progress(lease(0, 22), first) == (0.0, 1.0)


def test_windows_on_their_way_count_as_committed() -> None:
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4)
    short = next(p for p in range(11) if SPACE.size(p) == 2)
    theta = Theta(3, Path("theta"), "f" * 64, None, committed_windows=21)
    assert plan.progress(lease(short, short + 1), theta, ahead=12) == (33 / 84, 35 / 84)
    # a delta that was lost, and whose blocks are the lease's now, counts twice: never beyond 1
    assert plan.progress(lease(0, 22), theta, ahead=12) == (33 / 84, 1.0)
    assert plan.progress(lease(0, 22), theta, ahead=84) == (1.0, 1.0)


def test_a_phase_that_was_meant_to_be_shorter_is_not_partial() -> None:
    """A slower replica's balanced phase is whole; what was taken from it, or is gone, is not."""
    plan = PhasePlan(SPACE, inner_steps=3, batch_windows=4)
    whole = plan.num_blocks
    one = lease(0, 1).model_copy(update={"meant": 1})
    assert not plan.is_partial(one)
    assert plan.is_partial(one.model_copy(update={"meant": whole}))
    assert plan.is_partial(one.model_copy(update={"meant": 0})), "nobody said: H is meant"
    assert plan.is_partial(one.model_copy(update={"meant": whole + 9}))
