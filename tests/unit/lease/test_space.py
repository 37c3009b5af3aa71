"""The index space: a partition of the windows, in an order that depends on stated values only."""

import math
from dataclasses import replace

import pytest

from pww.config.schema import Darl
from pww.errors import LeaseError
from pww.lease.space import BlockSpace
from pww.wire import Span

SPACE = BlockSpace(
    num_windows=103, block_windows=8, seed=5, epochs=3, window_tokens=65, corpus="c" * 64
)


def test_sizes() -> None:
    assert SPACE.num_blocks == math.ceil(103 / 8) == 13
    assert SPACE.num_positions == 39
    assert SPACE.total_windows == 309


@pytest.mark.parametrize("block_windows", [1, 7, 8, 103, 500])
def test_each_epoch_holds_every_window_once(block_windows: int) -> None:
    space = replace(SPACE, block_windows=block_windows)
    for epoch in range(3):
        positions = range(epoch * space.num_blocks, (epoch + 1) * space.num_blocks)
        windows = [w for p in positions for w in space.windows(p)]
        assert sorted(windows) == list(range(103))


def test_a_block_holds_consecutive_windows_shuffled() -> None:
    space = replace(SPACE, num_windows=640, block_windows=64)
    for position in range(space.num_blocks):
        block, windows = space.block(position), space.windows(position)
        assert sorted(windows) == list(range(block * 64, block * 64 + 64))
        assert list(windows) != sorted(windows)


def test_epochs_and_seeds_have_their_own_order() -> None:
    orders = {
        tuple(space.block(e * 13 + i) for i in range(13))
        for space in (SPACE, replace(SPACE, seed=6))
        for e in range(3)
    }
    assert len(orders) == 6


def test_span_windows_are_what_the_spans_blocks_hold() -> None:
    for start in range(39):
        for stop in range(start + 1, 40):
            span = Span(start, stop)
            by_block = [len(SPACE.windows(p)) for p in range(start, stop)]
            assert SPACE.num_span_windows(span) == sum(by_block)
    assert [SPACE.size(p) for p in range(39)] == [len(SPACE.windows(p)) for p in range(39)]


def test_a_billion_blocks_cost_nothing() -> None:
    space = replace(SPACE, num_windows=8 * 10**9 - 3, epochs=4)
    assert space.num_blocks == 10**9
    assert space.num_span_windows(Span(0, 4 * 10**9)) == 4 * (8 * 10**9 - 3)
    assert len(space.windows(3_999_999_999)) in (5, 8)
    short = sum(space.size(p) == 5 for p in range(1000))
    assert short <= 1


def test_the_digest_covers_every_field() -> None:
    changed = [
        SPACE,
        replace(SPACE, num_windows=104),
        replace(SPACE, block_windows=9),
        replace(SPACE, seed=6),
        replace(SPACE, epochs=4),
        replace(SPACE, window_tokens=66),
        replace(SPACE, corpus="d" * 64),
    ]
    assert len({space.digest() for space in changed}) == len(changed)


def test_info_travels_and_comes_back() -> None:
    info = type(SPACE.info()).model_validate_json(SPACE.info().model_dump_json())
    assert BlockSpace.from_info(info) == SPACE


def test_another_permutation_is_refused() -> None:
    info = SPACE.info().model_copy(update={"permutation": "feistel-9", "digest": "e" * 64})
    with pytest.raises(LeaseError, match="'feistel-9', this pww derives 'feistel-1'"):
        BlockSpace.from_info(info)


def test_built_from_a_manifest_and_the_lease_settings() -> None:
    class Manifest:
        num_windows, window_tokens, digest = 103, 65, "c" * 64

    darl = Darl(
        block_windows=8,
        seed=5,
        epochs=3,
        ttl_floor_s=60.0,
        heartbeat_s=3.0,
        detect_s=10.0,
        restore_grace_s=60.0,
        ahead=False,
        max_attempts=0,
    )
    assert BlockSpace.of(Manifest(), darl) == SPACE


@pytest.mark.parametrize("field", ["num_windows", "block_windows", "epochs", "window_tokens"])
def test_an_empty_space_is_refused(field: str) -> None:
    with pytest.raises(LeaseError, match=f"{field}=0: it must be at least 1"):
        replace(SPACE, **{field: 0})


def test_too_many_positions_are_refused() -> None:
    with pytest.raises(LeaseError, match=r"fewer than 2\*\*62"):
        replace(SPACE, num_windows=2**61, block_windows=1, epochs=2)


@pytest.mark.parametrize("position", [-1, 39])
def test_a_position_outside_is_refused(position: int) -> None:
    with pytest.raises(LeaseError, match=rf"position {position} is outside"):
        SPACE.windows(position)


def test_a_span_outside_is_refused() -> None:
    with pytest.raises(LeaseError, match="position 39 is outside"):
        SPACE.num_span_windows(Span(38, 40))


def test_published_vectors_of_each_epochs_order() -> None:
    """From the permutation's published arithmetic, with the labels of the module's docstring."""
    orders = [[SPACE.block(e * 13 + i) for i in range(13)] for e in range(3)]
    assert orders == [
        [1, 3, 11, 5, 12, 6, 0, 9, 8, 4, 2, 10, 7],
        [10, 9, 4, 8, 6, 0, 2, 1, 5, 3, 12, 7, 11],
        [0, 11, 6, 10, 3, 5, 4, 9, 7, 8, 2, 1, 12],
    ]


@pytest.mark.parametrize(
    ("position", "windows"),
    [
        (0, (12, 9, 15, 8, 11, 14, 13, 10)),
        (14, (73, 76, 79, 75, 72, 77, 74, 78)),
        (4, (102, 99, 96, 97, 98, 100, 101)),  # the corpus' short block, in each epoch
        (23, (101, 100, 97, 102, 98, 99, 96)),
        (38, (99, 100, 96, 98, 102, 97, 101)),
    ],
)
def test_published_vectors_of_windows(position: int, windows: tuple[int, ...]) -> None:
    assert SPACE.windows(position) == windows


def test_published_vector_at_a_billion_blocks() -> None:
    space = replace(SPACE, num_windows=8 * 10**9, seed=1234, epochs=4)
    assert space.block(3_999_999_999) == 560_028_746
    shuffled = (0, 5, 3, 2, 1, 4, 7, 6)
    assert space.windows(3_999_999_999) == tuple(4_480_229_968 + i for i in shuffled)


def test_published_vector_of_the_digest() -> None:
    """SHA-256 of the lines `<field> <value>`, as any tool computes it."""
    digest = "a669cbe7016d78fea8123f2ab97b6d9b3d7f3dd90092f1f0d34eb26f0797a14b"
    assert SPACE.digest() == digest
