"""The cache of tokenised corpora: an entry is built by one process, published whole, never changed.

An entry is a folder. While it is built it is called `<entry>.part` and its builder holds
`<entry>.lock`, which the kernel lets go of however the builder ends; a `.part` whose lock is
free is garbage of a crash, and is removed.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from pww.clock import Clock
from pww.errors import DataError, InUse, StateError
from pww.folder import owned, sync_folder, sync_tree

LOOK_EVERY_S = 0.2
SAY_EVERY_S = 10.0

_log = logging.getLogger(__name__)


def published(entry: Path, *, build: Callable[[Path], None], clock: Clock) -> None:
    """Returns when `entry` is complete on disk; calls `build` with a new folder if there is none.

    Any number of processes may call this at once: one builds, the others wait and say so.

    Raises:
        DataError: the cache cannot be written; what was published before is intact.
    """
    if entry.is_dir():
        return
    part = entry.with_name(f"{entry.name}.part")
    try:
        with _waiting(entry, clock):
            if entry.is_dir():
                return
            _sweep(entry)
            part.mkdir()
            try:
                build(part)
                sync_tree(part)
                part.rename(entry)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            sync_folder(entry.parent)
    except OSError as fault:
        raise DataError(
            f"cannot write the tokenised corpus {entry}: {fault.strerror or fault};"
            " make room there and start again (finished pieces are kept), or set data.cache to"
            " another folder"
        ) from None


def withdrawn(entry: Path, *, clock: Clock) -> None:
    """Takes an entry away, so that the next `published` builds it anew; who has it open keeps it.

    Raises:
        DataError: the cache cannot be written.
    """
    part = entry.with_name(f"{entry.name}.part")
    try:
        with _waiting(entry, clock):
            if entry.is_dir():
                _sweep(entry)
                entry.rename(part)  # in one instant; cut off here, the next builder sweeps it
                shutil.rmtree(part)
    except OSError as fault:
        raise DataError(
            f"cannot remove the tokenised corpus {entry}: {fault.strerror or fault}; remove it by"
            " hand and start again"
        ) from None


def is_being_built(entry: Path) -> bool:
    """Whether a live process holds the entry's lock at this moment."""
    if not _lock_folder(entry).is_dir():
        return False  # nobody ever has, and to look must make nothing
    try:
        with _lock(entry):
            return False
    except InUse:
        return True
    except StateError:
        return False


@contextmanager
def _waiting(entry: Path, clock: Clock) -> Iterator[None]:
    """Holds the entry's lock; while another process has it, waits visibly."""
    never = threading.Event()
    started = clock.monotonic()
    said = started - SAY_EVERY_S
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(_lock(entry))
                break
            except InUse:
                now = clock.monotonic()
            except StateError as fault:
                raise fault.__cause__ or fault from None
            if now - said >= SAY_EVERY_S:
                said = now
                _log.info(
                    "waiting for another process that prepares %s (%.0f s so far)",
                    entry.name,
                    now - started,
                )
            clock.wait(never, LOOK_EVERY_S)
        yield


def _lock(entry: Path) -> AbstractContextManager[None]:
    return owned(_lock_folder(entry), remedy="wait for it")


def _lock_folder(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.lock")


def _sweep(entry: Path) -> None:
    """Removes what crashed builders left: this entry's (we hold its lock), and others' if free."""
    for part in sorted(entry.parent.glob("*.part")):
        other = part.with_name(part.name.removesuffix(".part"))
        try:
            if other == entry:
                shutil.rmtree(part)
            else:
                with _lock(other):
                    shutil.rmtree(part)
        except StateError:
            continue
        _log.info("removed %s, left over from a build that was cut off", part)
