"""What a session needs of the other side: the five calls, and what an earlier process left."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pww.errors import PwwError, Refused
from pww.wire import (
    Acquire,
    Acquired,
    Done,
    Exhausted,
    Heartbeat,
    Instruction,
    Leave,
    Register,
    Registered,
    Release,
)

log = logging.getLogger(__name__)


class CoordinatorPort(Protocol):
    """The five calls: in process (`central.coordinator`) or over HTTP; both may be repeated.

    They raise `Refused`, or `Unreachable` when there was no answer within the port's own deadline.
    """

    def register(self, message: Register, /) -> Registered:
        """First message of a process."""

    def acquire(self, message: Acquire, /) -> Acquired:
        """Asks for one span."""

    def heartbeat(self, message: Heartbeat, /) -> Instruction:
        """I live; renew these."""

    def release(self, message: Release, /) -> Done:
        """Takes leases back uncommitted."""

    def leave(self, message: Leave, /) -> Done:
        """Goodbye."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What the checkpoint of an earlier process of this replica holds; nothing on a first start."""

    run: str = ""
    last_round: int = 0
    theta_round: int = 0
    theta_hash: str = ""
    leases: tuple[int, ...] = ()
    deltas: tuple[str, ...] = ()  # in the outbox, without a verdict
    residual: str = ""  # tag of the residual in force


class Thread(Protocol):
    """What a session needs of its heartbeat thread."""

    def is_alive(self) -> bool:
        """Whether it still runs."""


def start_thread(work: Callable[[], None]) -> Thread:
    """Runs `work` beside its caller; it ends with the process at the latest."""
    thread = threading.Thread(target=work, daemon=True, name="heartbeat")
    thread.start()
    return thread


def say_goodbye(port: CoordinatorPort, message: Leave, *, within_s: float) -> None:
    """Delivers a goodbye in that time or not at all; never raises."""

    def say() -> None:
        try:
            port.leave(message)
        except PwwError as why:
            log.warning("goodbye not delivered: %s; leases return when they expire", why)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    thread.join(within_s)
    if thread.is_alive():
        log.warning("the central does not answer the goodbye; leases return when they expire")


def tell_waiting(seconds: float) -> None:
    """Says why no phase begins."""
    log.info("no block is free: the rest is at other replicas; waiting for %.0f s", seconds)


def tell_set_aside(end: Exhausted) -> None:
    """Names the blocks that are missing at the end of a run, if there are any."""
    if end.num_quarantined:
        named = ", ".join(map(str, end.quarantined))
        log.warning(
            "%d blocks were set aside after too many attempts: %s", end.num_quarantined, named
        )


def went_back(run: str, round_: int, *, known: int) -> Refused:
    """The central forgot rounds: nothing of its run may be trained on any more."""
    return Refused(
        f"the central is at round {round_} of run {run}, it was at {known} before: its state "
        "folder was replaced by an older copy; restore the newer one, or start with a new "
        "run.name on both sides",
        code="wrong_run",
    )
