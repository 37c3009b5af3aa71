"""The ranks of one replica as one actor: rank 0 talks to the network, all ranks learn the outcome together.

A network wait never sits inside a collective: rank 0 waits in a thread and tells the others every few seconds
that it still waits, so no process-group timeout can fire however long a central is away.
"""

import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

import torch.distributed as dist

from pww.errors import PwwError, Stopped

T = TypeVar("T")
TICK_S = 5.0


class Ranks:
    """Rank and world size, the agreed stop, and `share`. Build it after the process group exists."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._group = dist.new_group(backend="gloo") if self.world > 1 else None
        self._asked = threading.Event()

    def ask_to_stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """A signal handler: only sets a flag; ranks agree on it at the next step or tick."""
        self._asked.set()

    def handle_signals(self) -> None:
        """SIGINT and SIGTERM ask for an orderly stop."""
        signal.signal(signal.SIGINT, self.ask_to_stop)
        signal.signal(signal.SIGTERM, self.ask_to_stop)

    def agreed(self) -> bool:
        """Collective: True everywhere as soon as one rank was asked to stop."""
        if self._group is None:
            return self._asked.is_set()
        asked: list[bool] = [False] * self.world
        dist.all_gather_object(asked, self._asked.is_set(), group=self._group)
        if any(asked):
            self._asked.set()
        return any(asked)

    def share(self, work: Callable[[], T]) -> T:
        """Runs `work` on rank 0 and returns its (small) result, or raises its error, on every rank.

        Raises:
            Stopped: a stop was agreed while waiting; `work` is abandoned in its daemon thread.
        """
        results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        if self.rank == 0:

            def target() -> None:
                try:
                    results.put((work(), None))
                except BaseException as fault:
                    results.put((None, fault))

            threading.Thread(target=target, daemon=True, name="share").start()
        while True:
            outcome = self._poll(results) if self.rank == 0 else None
            if self._group is not None:
                box = [outcome]
                dist.broadcast_object_list(box, src=0, group=self._group)
                outcome = box[0]
            if outcome is not None:
                value, fault = outcome
                if fault is not None:
                    raise fault
                return value  # type: ignore[return-value]
            if self.agreed():
                raise Stopped("stopped while waiting for the central; nothing durable was lost")

    def _poll(
        self, results: "queue.SimpleQueue[tuple[T | None, BaseException | None]]"
    ) -> tuple[T | None, BaseException | None] | None:
        """The outcome as soon as there is one; None after a tick, or at once when asked to stop."""
        left = TICK_S
        while left > 0:
            try:
                return results.get(timeout=0.1)
            except queue.Empty:
                left -= 0.1
                if self._asked.is_set():
                    return None
        return None

    def agree_on_fault(self, fault: PwwError | None) -> None:
        """Collective: raises on every rank the first rank's fault, if any rank has one."""
        faults: list[PwwError | None] = [fault]
        if self._group is not None:
            faults = [None] * self.world
            dist.all_gather_object(faults, fault, group=self._group)
        for one in faults:
            if one is not None:
                raise one
