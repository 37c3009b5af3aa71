"""How many blocks a phase asks for, and how long a lease lives without a heartbeat."""

from pww.errors import LeaseError
from pww.lease.space import BlockSpace
from pww.wire import MAX_TTL_S

PHASES_PER_TTL = 2.5
RTTS_PER_TTL = 10.0


def blocks_for_phase(space: BlockSpace, *, inner_steps: int, batch_windows: int) -> int:
    """The most whole blocks that H steps can train on, wherever the corpus ends.

    Rounded down: a phase never takes more than H steps, and every leased window is trained in it.

    Raises:
        LeaseError: not even one block fits.
    """
    windows = inner_steps * batch_windows
    blocks = windows // space.block_windows
    if blocks < 1:
        raise LeaseError(
            f"a phase of diloco.inner_steps={inner_steps} x optim.batch_windows={batch_windows} = "
            f"{windows} windows holds no block of darl.block_windows={space.block_windows}; "
            f"raise the first two or lower darl.block_windows to at most {windows}"
        )
    return blocks


def lease_ttl_s(*, phase_s: float, rtt_s: float, floor_s: float) -> float:
    """2.5 measured phases and 10 round trips, but never below `floor_s` nor above a day."""
    return min(MAX_TTL_S, max(floor_s, PHASES_PER_TTL * phase_s + RTTS_PER_TTL * rtt_s))
