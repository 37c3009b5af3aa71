"""One owner for each state folder, by a lock that dies with its process; writes whole or absent."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pww.errors import InUse, StateError


@contextmanager
def owned(folder: Path, *, remedy: str, name: str = ".lock") -> Iterator[None]:
    """Holds `folder` for this process; the kernel lets go of it however the process ends.

    One lock for each `name`: what of the folder it is that is held.

    Raises:
        InUse: another live process holds it; `remedy` says what to do.
        StateError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise StateError(
            f"{folder} cannot be used: {why}; make room for it there, or set run.root to a folder "
            "that you may write to"
        ) from why
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(f"{folder} is in use by another process: {remedy}") from None
        yield
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replaces `path` by `data`: after a crash there is the old file or the new, never a part.

    A `private` file was never readable by anybody else, not even while it was written.
    """
    write_pieces_durably(path, (data,), private=private)


def write_pieces_durably(path: Path, pieces: Iterable[bytes], *, private: bool = False) -> None:
    """The same, of what need not be in memory at once."""
    part = path.with_name(path.name + ".part")
    try:
        if private:
            part.unlink(missing_ok=True)  # what a crash left may be open to others
            part.touch(mode=0o600, exist_ok=False)
        with part.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Makes every file and name below `folder` durable."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)
