"""The central's end of a shared folder: it never waits for it, and leaves nothing behind there."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from pww.central.errands import Errands
from pww.central.objects import LEFT_S, Objects
from pww.clock import ManualClock, SystemClock
from pww.errors import CentralError, NotYet, PayloadError
from pww.transport.carrier import Transfers
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.wire import PayloadInfo

LIMIT_S = 60.0


def info_of(data: bytes) -> PayloadInfo:
    return PayloadInfo(codec="fp32", size_bytes=len(data), digest=blake3(data).hexdigest())


DATA = b"of a delta" * 1000
INFO = info_of(DATA)


class Shared:
    """A folder that everybody reaches, and the central's end of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.there = root, root / "there"
        self.there.mkdir()
        self.clock, self.stop = ManualClock(), threading.Event()
        self.carrier = FsspecCarrier(
            f"file://{self.there}", clock=SystemClock(), stop=threading.Event(),
            random=np.random.default_rng(0),
        )  # fmt: skip
        self.objects = self.open()

    def open(self, carrier: Any = None) -> Objects:
        return Objects(
            carrier or self.carrier, self.root / "here", clock=self.clock, stop=self.stop
        )

    def file(self, data: bytes) -> Path:
        path = self.root / f"file-{blake3(data).hexdigest()[:8]}"
        path.write_bytes(data)
        return path

    def settle(self) -> set[str]:
        """What is there when nothing is under way."""
        assert self.objects.wait(LIMIT_S)
        return {path.name for path in self.there.iterdir()}


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def taken(objects: Objects, info: PayloadInfo) -> Path | None:
    """Asks until it is no longer on its way."""
    until_s = SystemClock().monotonic() + LIMIT_S
    while SystemClock().monotonic() < until_s:
        try:
            return objects.take(info)
        except NotYet:
            SystemClock().wait(threading.Event(), 0.005)
    raise AssertionError("it never came")


def test_an_object_of_the_right_size_and_other_bytes_is_removed(shared: Shared) -> None:
    (shared.there / INFO.digest).write_bytes(DATA[::-1])
    assert taken(shared.objects, INFO) is None
    assert shared.settle() == set()
    shared.carrier.put(shared.file(DATA), INFO)  # as the site does that is told to send it again
    path = taken(shared.objects, INFO)
    assert path is not None
    assert path.read_bytes() == DATA
    assert shared.objects.take(INFO) == path, "until it is discarded"
    shared.objects.discard(INFO)
    assert shared.settle() == set()
    assert not path.exists()


class Gated:
    """A store whose calls end when they are let through, and fail as often as they are told."""

    def __init__(self, data: bytes = DATA, *, faults: tuple[Exception, ...] = ()) -> None:
        self.gate, self.data, self.faults = threading.Event(), data, list(faults)
        self.calls: list[str] = []

    def _pass(self, what: str) -> None:
        self.calls.append(what)
        assert self.gate.wait(LIMIT_S)
        if self.faults:
            raise self.faults.pop(0)

    def get(self, info: PayloadInfo, path: Path) -> None:
        self._pass("get")
        path.write_bytes(self.data)

    def put(self, path: Path, info: PayloadInfo) -> None:
        self._pass("put")

    def remove(self, name: str) -> None:
        self._pass(f"remove {name[:4]}")

    def contents(self) -> dict[str, str]:
        return {}

    def transfers(self) -> Transfers:
        return Transfers(retries=7)


def test_nobody_waits_for_a_store_that_stalls(shared: Shared) -> None:
    store = Gated()
    objects = shared.open(store)
    other = info_of(b"of another site")
    for _ in range(3):
        for info in (INFO, other):
            with pytest.raises(NotYet, match="is being fetched"):
                objects.take(info)
    objects.publish(INFO, shared.file(DATA))
    objects.withdraw(other)
    assert not objects.has(INFO)
    assert objects.retries == 7
    store.gate.set()
    assert taken(objects, INFO) is not None
    assert objects.wait(LIMIT_S)
    assert objects.has(INFO)
    assert store.calls.count("get") == 2, "each was asked for once"


def test_what_cannot_be_put_is_tried_again_until_it_can_be(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    """A central that ends because a bucket is away for a minute would lose every site."""
    store = Gated(faults=(CentralError("no bucket"), OSError("no disk")))
    store.gate.set()
    objects = shared.open(store)
    objects.publish(INFO, shared.file(DATA))
    assert objects.wait(LIMIT_S)
    assert objects.has(INFO)
    assert store.calls == ["put"] * 3
    assert "a file for the sites cannot be put there: no bucket" in caplog.text
    objects.sweep()
    assert objects.wait(LIMIT_S)
    assert len(store.calls) == 4, "somebody may have removed it"
    store.faults, shared.clock = [CentralError("no bucket")] * 99, ManualClock()
    shared.stop.set()
    objects.sweep()
    assert objects.wait(LIMIT_S), "a stop ends it"
    objects.close()


def test_what_is_withdrawn_is_not_put_any_more(shared: Shared) -> None:
    store = Gated(faults=(CentralError("no bucket"),))
    objects = shared.open(store)
    objects.publish(INFO, shared.file(DATA))
    objects.withdraw(INFO)
    store.gate.set()
    assert objects.wait(LIMIT_S)
    assert not objects.has(INFO)
    assert store.calls in (["put", f"remove {INFO.digest[:4]}"], [f"remove {INFO.digest[:4]}"])


@pytest.mark.parametrize("fault", [OSError("disk full"), RuntimeError("a bug")])
def test_what_this_machine_refuses_is_raised_where_it_is_asked_for(
    shared: Shared, fault: Exception
) -> None:
    store = Gated(faults=(fault,))
    store.gate.set()
    objects = shared.open(store)
    with pytest.raises(type(fault), match=str(fault)):
        taken(objects, INFO)
    assert taken(objects, INFO) is not None, "and fetched again"


def test_what_cannot_be_fetched_is_none(shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    assert taken(shared.objects, INFO) is None
    assert "a payload cannot be fetched: object" in caplog.text
    store = Gated(faults=(PayloadError("damaged"),))
    store.gate.set()
    assert taken(shared.open(store), INFO) is None
    assert "a payload cannot be used: damaged" in caplog.text


def test_an_object_that_is_given_up_while_it_comes_is_not_kept(shared: Shared) -> None:
    store = Gated()
    objects = shared.open(store)
    with pytest.raises(NotYet):
        objects.take(INFO)
    objects.discard(INFO)
    store.gate.set()
    until_s = SystemClock().monotonic() + LIMIT_S
    while objects._fetches and SystemClock().monotonic() < until_s:
        SystemClock().wait(threading.Event(), 0.005)
    assert not list((shared.root / "here").iterdir())


def test_theta_0_that_a_site_put_stays_when_its_message_is_done(shared: Shared) -> None:
    path = shared.file(DATA)
    shared.carrier.put(path, INFO)
    assert taken(shared.objects, INFO) is not None
    shared.objects.publish(INFO, path)
    shared.objects.discard(INFO)
    assert shared.settle() == {INFO.digest}
    shared.objects.withdraw(INFO)
    assert shared.settle() == set()


# -------------------------------------------------------------------------------- leftovers


def test_what_a_dead_process_left_is_removed_and_nothing_that_is_needed(shared: Shared) -> None:
    """A delta nobody offers, half an upload; not theta, nor what grows, nor what is foreign."""
    theta = b"theta of now"
    left, growing = "b" * 64, f"{'c' * 64}.0123abcd.part"
    dead = f"{'d' * 64}.0123abcd.part"
    for name in (left, growing, dead, "notes.txt"):
        (shared.there / name).write_bytes(b"x")
    shared.objects.publish(info_of(theta), shared.file(theta))
    shared.carrier.put(shared.file(DATA), INFO)
    assert taken(shared.objects, INFO) is not None
    needed = {info_of(theta).digest, INFO.digest, "notes.txt"}

    def later(share: float) -> set[str]:
        shared.clock.advance(LEFT_S * share)
        shared.objects.sweep()
        return shared.settle()

    assert later(0.0) == needed | {left, growing, dead}
    (shared.there / growing).write_bytes(b"more than before")
    assert later(0.9) == needed | {left, growing, dead}
    assert shared.objects.take(INFO) is not None, "somebody needs it still"
    assert later(0.2) == needed | {growing}
    assert later(0.6) == needed | {growing}
    assert later(0.4) == needed, "it grew no more"


def test_a_restart_counts_anew(shared: Shared) -> None:
    """Nobody compares the clock of a file server with ours."""
    (shared.there / "b".ljust(64, "b")).write_bytes(b"x")
    for _ in range(3):
        shared.clock.advance(LEFT_S * 0.9)
        shared.objects = shared.open()
        assert len(shared.settle()) == 1
    shared.clock.advance(LEFT_S)
    shared.objects.sweep()
    assert shared.settle() == set()


def test_what_was_fetched_for_a_site_that_went_away_is_forgotten_here(shared: Shared) -> None:
    shared.carrier.put(shared.file(DATA), INFO)
    path = taken(shared.objects, INFO)
    assert path is not None
    for _ in range(3):
        shared.clock.advance(LEFT_S)
        shared.objects.sweep()
        shared.settle()
    assert not path.exists()
    assert shared.settle() == set()


# ---------------------------------------------------------------------------------- errands


def test_errands_go_on_after_one_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    errands, done = Errands("the shop"), []

    def fails(why: Exception) -> Callable[[], None]:
        def call() -> None:
            raise why

        return call

    assert errands.wait(0.0), "nothing was given"
    with caplog.at_level(logging.ERROR):
        errands.give(fails(CentralError("closed today")))
        errands.give(fails(ValueError("a bug")))
        errands.give(lambda: done.append(1))
        assert errands.wait(LIMIT_S)
    assert done == [1]
    assert "the shop: closed today" in caplog.text
    assert "the shop failed" in caplog.text
    gate = threading.Event()
    errands.give(lambda: gate.wait(LIMIT_S) and None)
    errands.give(lambda: done.append(2))
    assert not errands.close(0.0)
    gate.set()
    errands.give(lambda: done.append(3))
    assert errands.wait(LIMIT_S)
    assert done == [1], "what waited and what came later is dropped"
