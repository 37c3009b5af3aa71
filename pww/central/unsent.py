"""What never reaches theta though its blocks do: residuals that replicas hold at the end.

With error feedback what encoding loses goes out with the replica's next delta. After its last one
it stays behind; how much that was is in the delta's own metrics.
"""

import logging
import math
from dataclasses import dataclass

from pww.central.state import State
from pww.wire import Offer, Register

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unsent:
    """The residual after a replica's last merged delta; norms are L2."""

    replica: str
    delta: str
    norm: float
    delta_norm: float
    loss: float  # of the phase

    @property
    def of_delta(self) -> float:
        """The norm's share of the delta's."""
        return self.norm / self.delta_norm if self.delta_norm else math.inf

    def __str__(self) -> str:
        return f"{self.replica}: norm {self.norm:.3g}, {self.of_delta:.2%} of its last delta's"


def unsent(state: State) -> tuple[Unsent, ...]:
    """Of every replica that holds one, gone or not, in order of their ids."""
    with state.lock:
        found = (_after(state, replica) for replica in sorted(state.last_merged))
        return tuple(one for one in found if one is not None)


def note_lost(state: State, message: Register) -> None:
    """Says so when a new process comes without the residual of its replica's last merged delta.

    It lost its disk, or its folder is an old copy; a residual that it may have instead is dropped,
    since `Registered.last_merged` names another delta. What is on its way may be the last one too.
    """
    lost = _after(state, message.replica)
    if lost is not None and lost.delta != message.residual and lost.delta not in message.deltas:
        log.warning(
            "%s comes without the residual of its last merged delta, %s: it is never sent (norm "
            "%.3g)", message.replica, lost.delta, lost.norm,
        )  # fmt: skip


def _after(state: State, replica: str) -> Unsent | None:
    delta = state.last_merged.get(replica, "")
    rows = state.ledger.rows("SELECT offer FROM deltas WHERE delta = ?", delta)
    if not rows:
        return None
    told = Offer.model_validate_json(str(rows[0][0])).metrics
    if told.residual_norm == 0.0:
        return None
    return Unsent(replica, delta, told.residual_norm, told.delta_norm, told.loss)
