"""The ranks of an allocation end together: none is gone while rank 0 still says goodbye.

A rank that ends with another code than 0 makes its launcher kill the rest. Without this, a stop
would cost rank 0 of all what it does last: giving leases back, and sending the last rows. Nor is
rank 0 gone before the others have stopped listening: the store where they meet may be its own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from torch._C._distributed_c10d import Store

from pww.errors import Stopped
from pww.trainer.ranks import CLOSE_S

GOODBYE_S = 120.0
"""Rank 0 may take so long to tell a central and a metrics server that it ends."""
FAULT_S = 5.0
"""The same where the run ends with a fault: the others may be gone for good."""
log = logging.getLogger(__name__)


class Parting:
    """One rank's way out, in two steps. A store that is gone is told of and keeps nobody."""

    def __init__(self, store: Store | None, *, rank: int, world: int) -> None:
        """`store` is the one where all `world` ranks met; None: there is one rank."""
        self._store, self._rank, self._world = store, rank, world
        self._all_came = False

    def wait(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """For `ExitStack.push`: returns once all ranks are here, that is, have said goodbye."""
        store = self._store
        if store is None:
            return
        ordered = fault is None or isinstance(fault, Stopped)
        with _told():
            if store.add("pww/goodbyes", 1) == self._world:
                store.set("pww/all-said", "")
            store.wait(["pww/all-said"], timedelta(seconds=GOODBYE_S if ordered else FAULT_S))
            self._all_came = True

    def end(self) -> None:
        """The last call of a rank: the first one outlives the others, if they came to `wait`."""
        store = self._store
        if store is None or not self._all_came:
            return
        with _told():
            if self._rank == 0:
                store.wait(["pww/all-ended"], timedelta(seconds=CLOSE_S))
            elif store.add("pww/ended", 1) == self._world - 1:
                store.set("pww/all-ended", "")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except RuntimeError as fault:
        log.warning("not all ranks of this allocation have ended by themselves: %s", fault)
