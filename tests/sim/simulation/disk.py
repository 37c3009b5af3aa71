"""The disk of the simulated machines: real files, where a write may kill, be torn, block or fail.

Every change that a machine's greenlet makes (open for writing, write, fsync, mkdir, rename, remove,
an SQL statement) passes `touch` first. There the process may die, find the disk full, or be held
up while other threads go on. fsync itself is skipped: the files are in memory and no kernel dies.
"""

import contextlib
import errno
import io
import os
import sqlite3
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import greenlet
from simulation.kernel import Crash, Machine, running

from pww import log as pww_log
from pww.central import ledger as pww_ledger

WRITES = ("INSERT", "UPDATE", "DELETE", "COMMIT", "BEGIN", "CREATE")
SLOW = 0.02
"""Chance that an operation takes long enough for another thread to come in between."""
SLOW_S = 0.4


def touch(what: str, *, grows: bool) -> None:
    """Just before a change of the disk; `grows`: a full disk refuses it."""
    machine = running()
    if machine is None:
        return
    machine.check()
    world = machine.world
    if what == "rename":
        machine.on_rename()
    if machine.fuse:
        machine.fuse -= 1
        if machine.fuse == 0:
            world.inject(
                f"crash_at_write_{machine.name.partition('/')[0]}", f"{machine.name} {what}"
            )
            world.deaths[f"{machine.kind} died at {what.strip()}"] += 1
            machine.dead = True  # nothing more reaches the disk
            world.at(0.0, machine.crash)
            raise Crash
    if grows and world.now < machine.full_until_s:
        world.inject(f"disk_full_{machine.kind}", f"{machine.name} {what}")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if world.chance(SLOW):
        world.faults["slow_write"] += 1
        world.sleep(world.uniform(0.0, SLOW_S))


class Connection(sqlite3.Connection):
    """An SQLite connection of a machine; closed by its death, without a commit."""

    def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
        head = sql.lstrip()[:6].upper()
        if sql == "PRAGMA synchronous=FULL":
            sql = "PRAGMA synchronous=OFF"  # no kernel dies here
        if head == "ROLLBA":
            machine = running()
            if machine is not None:
                machine.check()
        elif head in WRITES or head.startswith("BEGIN"):
            try:
                touch(head, grows=not head.startswith("BEGIN"))
            except OSError as why:
                raise sqlite3.OperationalError("database or disk is full") from why
        return super().execute(sql, *more)

    def executemany(self, sql: str, *more: Any) -> sqlite3.Cursor:
        try:
            touch("INSERT many", grows=True)
        except OSError as why:
            raise sqlite3.OperationalError("database or disk is full") from why
        return super().executemany(sql, *more)


class _Sqlite(ModuleType):
    """`sqlite3` for the ledger."""

    def __init__(self) -> None:
        super().__init__("sqlite3")
        same = {k: v for k, v in vars(sqlite3).items() if not k.startswith("__")}
        self.__dict__.update({**same, "connect": self._connect})

    def _connect(self, *args: Any, **more: Any) -> sqlite3.Connection:
        made = sqlite3.connect(*args, **{"factory": Connection, **more})
        machine = running()
        if machine is not None:
            machine.open.append(made)
        return made


def _before(function: Callable[..., Any], what: str, *, grows: bool) -> Callable[..., Any]:
    def changed(*args: Any, **more: Any) -> Any:
        touch(what, grows=grows)
        return function(*args, **more)

    return changed


def _os_open(function: Callable[..., Any]) -> Callable[..., Any]:
    def opened(path: Any, flags: int, *args: Any, **more: Any) -> Any:
        if flags & (os.O_WRONLY | os.O_RDWR):
            touch("open", grows=True)
        return function(path, flags, *args, **more)

    return opened


def _io_open(function: Callable[..., Any]) -> Callable[..., Any]:
    def opened(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        if writes:
            touch("open", grows=True)
        made = function(file, mode, *args, **more)
        machine = running()
        if writes and machine is not None:
            machine.open.append(made)
        return made

    return opened


def _fsync(function: Callable[..., Any]) -> Callable[..., Any]:
    def synced(handle: int) -> None:
        if running() is None:
            function(handle)
        else:
            touch("fsync", grows=False)

    return synced


def _line(function: Callable[..., Any]) -> Callable[..., Any]:
    """`JsonLines.write`: a death may leave a part of the line."""

    def written(self: Any, row: dict[str, object], *, durable: bool = False) -> None:
        try:
            touch("line", grows=True)
        except Crash:
            machine: Machine | None = running()
            if machine is not None and machine.world.chance(0.5):
                self._file.write(b'{"torn": ')
            raise
        function(self, row, durable=durable)

    return written


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """In the block, operations of simulated machines go through `touch`."""
    doubles = [
        (os, "open", _os_open(os.open)),
        (io, "open", _io_open(io.open)),
        (os, "fsync", _fsync(os.fsync)),
        (os, "write", _before(os.write, "write", grows=True)),
        (os, "mkdir", _before(os.mkdir, "mkdir", grows=True)),
        (os, "rename", _before(os.rename, "rename", grows=False)),
        (os, "replace", _before(os.replace, "replace", grows=False)),
        (os, "unlink", _before(os.unlink, "unlink", grows=False)),
        (os, "rmdir", _before(os.rmdir, "rmdir", grows=False)),
        (pww_log.JsonLines, "write", _line(pww_log.JsonLines.write)),
        (pww_ledger, "sqlite3", _Sqlite()),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in doubles]
    for owner, name, double in doubles:
        setattr(owner, name, double)
    try:
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)


def alone(work: Callable[[], Any]) -> Any:
    """The simulation's own look at the disk, from whatever greenlet."""
    assert greenlet.getcurrent() is not None
    me = greenlet.getcurrent()
    machine = getattr(me, "machine", None)
    me.machine = None
    try:
        return work()
    finally:
        me.machine = machine
