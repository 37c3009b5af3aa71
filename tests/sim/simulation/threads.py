"""`threading` and `queue` as pww's modules see them in a simulation: greenlets, no threads."""

import contextlib
import functools
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import greenlet
from simulation.kernel import World, running

WORLD: list[World] = []
"""The world that runs; a list, since module globals of pww are looked up late."""


def _world() -> World:
    return WORLD[-1]


class Waiters:
    """Greenlets that wait for something, each woken once: by it or by time."""

    def __init__(self) -> None:
        self._tickets: list[list[Any]] = []

    def wait(self, timeout_s: float | None) -> bool:
        """False if the time was up first."""
        world, me = _world(), greenlet.getcurrent()
        ticket = [me]
        self._tickets.append(ticket)

        def late() -> None:
            if ticket:
                ticket.clear()
                me.switch(False)

        if timeout_s is not None:
            world.at(max(timeout_s, 1e-6), late, machine=me.machine)
        try:
            return bool(world.park())
        finally:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def wake(self, number: int) -> None:
        """Wakes up to `number` of them, oldest first."""
        for ticket in self._tickets[:]:
            if number == 0:
                return
            if ticket:
                sleeper = ticket.pop()
                _world().wake(sleeper, True)
                number -= 1

    def __len__(self) -> int:
        return sum(1 for ticket in self._tickets if ticket)


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake(1 << 30)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        machine = running()
        if machine is not None:
            machine.check()
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class RLock:
    """`threading.RLock` and `Lock`, owned by a greenlet."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0
        self._waiters = Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = greenlet.getcurrent()
        while self._owner not in (None, me):
            if not blocking:
                return False
            self._waiters.wait(None if timeout < 0 else timeout)
            if timeout >= 0 and self._owner not in (None, me):
                return False
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        if self._owner is not greenlet.getcurrent():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._waiters.wake(1)

    def locked(self) -> bool:
        return self._owner is not None

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiters = Waiters()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        depth, self._lock._depth = self._lock._depth, 1
        self._lock.release()
        try:
            return self._waiters.wait(timeout)
        finally:
            self._lock.acquire()
            self._lock._depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else _world().now + timeout
        while not (result := predicate()):
            left = None if end is None else end - _world().now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        self._waiters.wake(n)

    def notify_all(self) -> None:
        self._waiters.wake(1 << 30)


class Thread:
    """`threading.Thread`: a greenlet of the machine that starts it."""

    def __init__(
        self, group: None = None, target: Any = None, name: str = "", args: Any = (),
        kwargs: Any = None, *, daemon: bool = False,
    ) -> None:  # fmt: skip
        self._target, self.name, self._args, self._kwargs = target, name, args, kwargs or {}
        self.daemon = daemon
        self._started = self._ended = False
        self._over = Event()

    def start(self) -> None:
        machine = running()
        assert machine is not None, "a thread belongs to a machine"
        machine.check()
        self._started = True
        machine.start(self._run, self.name or "thread")

    def _run(self) -> None:
        try:
            self._target(*self._args, **self._kwargs)
        finally:
            self._ended = True
            self._over.set()

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self._started and not self._ended


class SimpleQueue:
    """`queue.SimpleQueue` and `Queue` without a size."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items: list[Any] = []
        self._waiters = Waiters()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._waiters.wake(1)

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            self._waiters.wait(timeout)
        if not self._items:
            raise queue.Empty
        return self._items.pop(0)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


class Pool:
    """`concurrent.futures.ThreadPoolExecutor`: what is submitted is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """It has no threads to count or name."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **more))
        except Exception as why:
            future.set_exception(why)
        return future

    def map(self, work: Callable[..., Any], *rows: Any, **_: Any) -> Iterator[Any]:
        return iter([work(*row) for row in zip(*rows, strict=False)])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is left to do."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do."""


class _Threading(ModuleType):
    """Stands for the module; what is not simulated is not there, so its use is noticed."""

    def __init__(self) -> None:
        super().__init__("threading")
        self.Event, self.Thread, self.Condition = Event, Thread, Condition
        self.Lock = self.RLock = RLock
        self.get_ident = lambda: id(greenlet.getcurrent())
        self.current_thread = threading.current_thread


class _Queue(ModuleType):
    def __init__(self) -> None:
        super().__init__("queue")
        self.Empty, self.SimpleQueue, self.Queue = queue.Empty, SimpleQueue, SimpleQueue


_MODULES = {id(threading): _Threading(), id(queue): _Queue()}
_NAMES = {
    id(threading.Event): Event, id(threading.Thread): Thread, id(threading.Lock): RLock,
    id(threading.RLock): RLock, id(threading.Condition): Condition,
    id(ThreadPoolExecutor): Pool, id(queue.SimpleQueue): SimpleQueue, id(queue.Queue): SimpleQueue,
}  # fmt: skip


@functools.cache
def _places(_num_modules: int) -> tuple[tuple[ModuleType, str, Any, Any], ...]:
    """Where pww's loaded modules name a thread or a queue: module, name, real thing, double."""
    found = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("pww.") or module is None:
            continue
        for key, value in vars(module).items():
            double = _MODULES.get(id(value)) or _NAMES.get(id(value))
            if double is not None:
                found.append((module, key, value, double))
    return tuple(found)


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """In the block every loaded module of pww gets its threads and queues from here."""
    places = _places(len(sys.modules))
    for module, key, _, double in places:
        setattr(module, key, double)
    WORLD.append(world)
    try:
        yield
    finally:
        WORLD.pop()
        for module, key, real, _ in places:
            setattr(module, key, real)
