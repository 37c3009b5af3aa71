"""How many blocks a replica is granted: as asked, or fewer so that replicas finish together.

Nobody gets more than it asks for (H is the most steps of a phase). With `diloco.phase=balanced` the
fastest live replica gets that and the others the share of its measured speed. A replica whose delta
came too late to be merged gets phases that fit the staleness window from then on.
"""

from collections.abc import Iterable

from pww.central.membership import Seat

GROWTH = 2.0
"""A replica that delivers in its own round again gets its phases back in steps of this factor."""


def num_blocks(asked: int, *, seat: Seat, seats: Iterable[Seat], balanced: bool) -> int:
    """Blocks for one phase of `seat`, of at most `asked`; at least one."""
    share = seat.fit
    if balanced and seat.windows_per_s > 0:
        fastest = max(s.windows_per_s for s in seats if s.state == "live")
        share *= min(1.0, seat.windows_per_s / fastest)
    return max(1, round(asked * share))


def fit_after(fit: float, *, staleness: int, window: int) -> float:
    """The share of a phase that fits, after a delta of that staleness was judged."""
    if staleness > window:
        return fit * (window + 1) / (staleness + 1)
    return min(1.0, fit * GROWTH) if staleness == 0 else fit
