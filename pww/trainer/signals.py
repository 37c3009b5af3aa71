"""The wish to stop, as signals bring it: noted by a handler that does nothing else, never raised.

SIGINT and SIGTERM come from people, SIGUSR2 from a queue some time before a job's limit. A forked
child of a rank (a data loader's worker) is not asked: in it the three mean what they always mean.
"""

import os
import signal
import threading
from types import FrameType

QUEUE = signal.SIGUSR2
"""What Slurm sends with --signal=USR2@…: stop, checkpoint, and you will be started again."""

_received: set[int] = set()
_events: list[threading.Event] = []
_forks_are_watched = False


def defer() -> None:
    """From now on SIGUSR2 is remembered, for `listen`: loading the engine takes its time."""
    _received.clear()
    _events.clear()
    signal.signal(QUEUE, _note)


def listen(asked: threading.Event) -> None:
    """Each of the three signals sets `asked`, as does a SIGUSR2 that came before."""
    global _forks_are_watched
    _events[:] = [asked]
    for number in (signal.SIGINT, signal.SIGTERM, QUEUE):
        signal.signal(number, _note)
    if not _forks_are_watched:
        os.register_at_fork(after_in_child=_in_a_child)
        _forks_are_watched = True
    if QUEUE in _received:
        asked.set()


def queue_asked() -> bool:
    """Whether this process was told that its job's time is nearly over."""
    return QUEUE in _received


def _note(signum: int, frame: FrameType | None) -> None:
    _received.add(signum)
    for event in _events:
        event.set()


def _in_a_child() -> None:
    """The parent ends its children by itself: a queue's signal to all of them is not for them."""
    for number in (signal.SIGINT, signal.SIGTERM, QUEUE):
        if signal.getsignal(number) is _note:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
