"""Sizes of grants and times to live, against their formulas."""

import pytest

from pww.errors import LeaseError
from pww.lease import BlockSpace, blocks_for_phase, lease_ttl_s

SPACE = BlockSpace(
    num_windows=1000, block_windows=8, seed=0, epochs=1, window_tokens=9, corpus="c" * 64
)


@pytest.mark.parametrize(
    ("inner_steps", "batch", "blocks"), [(1, 8, 1), (4, 4, 2), (5, 3, 1), (100, 16, 200)]
)
def test_whole_blocks_within_h_steps(inner_steps: int, batch: int, blocks: int) -> None:
    assert blocks_for_phase(SPACE, inner_steps=inner_steps, batch_windows=batch) == blocks
    assert blocks * 8 <= inner_steps * batch < (blocks + 1) * 8


def test_no_block_fits() -> None:
    with pytest.raises(LeaseError, match=r"= 6 windows holds no block of darl.block_windows=8"):
        blocks_for_phase(SPACE, inner_steps=3, batch_windows=2)


def test_ttl() -> None:
    assert lease_ttl_s(phase_s=100.0, rtt_s=0.5, floor_s=60.0) == 255.0
    assert lease_ttl_s(phase_s=0.0, rtt_s=0.0, floor_s=60.0) == 60.0
    assert lease_ttl_s(phase_s=1e6, rtt_s=0.0, floor_s=60.0) == 86_400.0
    assert lease_ttl_s(phase_s=0.0, rtt_s=0.0, floor_s=1e6) == 86_400.0
