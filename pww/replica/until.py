"""What ends a phase before its last step, agreed on by all ranks of a replica."""

import logging
from collections.abc import Callable

from pww.clock import Clock
from pww.replica.holdings import Standing
from pww.trainer.ranks import Ranks

log = logging.getLogger(__name__)
GO, PAUSE, STOP, LOST, FAILED = range(5)
"""What a rank says of the phase; the largest of all ranks holds."""
PAUSE_S = 1.0


class Until:
    """Somebody asked to stop, the lease was taken back, or what travels beside cannot arrive.

    While the lease may have expired without our knowing, it holds the phase: another replica may be
    given its blocks by now.
    """

    def __init__(
        self,
        ranks: Ranks,
        lease: int,
        *,
        clock: Clock,
        standing: Callable[[], Standing],
        failing: Callable[[], bool] = bool,
    ) -> None:
        """Rank 0 alone asks `standing` of the lease, and `failing`: that a delta cannot be sent."""
        self._ranks, self._lease, self._clock = ranks, lease, clock
        self._standing, self._failing = standing, failing
        self.lost = self.failed = False

    def agreed(self) -> bool:
        """Collective: the same answer on every rank."""
        held = False
        while (agreed := self._ranks.most(self._mine())) == PAUSE:
            if not held and self._ranks.rank == 0:
                log.warning(
                    "lease %d may have expired, the central has not answered for so long: the "
                    "phase is held until it does", self._lease,
                )  # fmt: skip
            held = True
            self._clock.wait(self._ranks.asked, PAUSE_S)
        if held and agreed == GO and self._ranks.rank == 0:
            log.info("lease %d is still ours: the phase goes on", self._lease)
        self.lost, self.failed = agreed == LOST, agreed == FAILED
        return agreed >= STOP

    def _mine(self) -> int:
        standing: Standing = self._standing() if self._ranks.rank == 0 else "draw"
        mine = STOP if self._ranks.asked.is_set() else GO
        match standing:
            case "lost":
                mine = LOST
            case "pause":
                mine = max(mine, PAUSE)
            case "draw":
                pass
        if self._ranks.rank == 0 and self._failing():
            mine = FAILED
        return mine
