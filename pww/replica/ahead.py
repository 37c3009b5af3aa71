"""What is done for the next phase while a delta travels: its windows are fetched to where it reads.

    put        the delta is durable
    send       rank 0's thread brings it, and waits for the verdict
      expect   meanwhile every rank has the windows of its part of the next lease read ahead
    verdict    then theta, and the next phase

The lease itself was granted while the phase before ran, or is while its delta travels, by the
heartbeats (`replica.session`): it may still shrink or go, so nothing is drawn from it here. Theta
cannot be had sooner: it is made of this delta.
"""

from pww.replica.plan import PhasePlan
from pww.replica.session import Session
from pww.replica.turns import NONE
from pww.trainer.api import Trainer
from pww.trainer.ranks import Ranks


class Ahead:
    """The lease after the one in work, as far as its windows are concerned."""

    def __init__(self, session: Session, *, plan: PhasePlan, ranks: Ranks) -> None:
        """Rank 0 alone uses `session`."""
        self._session, self._plan, self._ranks = session, plan, ranks
        self._told = NONE

    def look(self, trainer: Trainer) -> None:
        """Tells the trainer once what comes next, as soon as that is known. Collective, and quick;
        no request is made.
        """
        lease = self._ranks.local(lambda: self._session.ahead())
        if lease is not None and lease.id != self._told:
            self._told = lease.id
            trainer.expect(self._plan.windows(lease))
