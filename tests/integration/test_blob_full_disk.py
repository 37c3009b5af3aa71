"""A full disk at each write of either end: nothing is lost, nothing half is visible, it goes on.

The fault is put under the one place that writes; which of its calls fails goes through all of them.
"""

import errno
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))

from blob_desk import PIECE, QUICK, Desk, Hasty, carrier, made

from pww.errors import Unreachable

ONE = replace(QUICK, min_streams=1, max_streams=1)
SIZE_BYTES = 3 * PIECE + 7
NAMES = ("pwrite", "ftruncate", "fsync")
Full = Callable[..., "Disk"]


class Disk:
    """Counts calls that write, and fails the n-th, or all from there on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, n: int, ever: bool = False) -> None:
        self.lock, self.calls, self.n, self.ever = threading.Lock(), 0, n, ever
        for name in NAMES:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            with self.lock:
                self.calls += 1
                now = self.calls == self.n or (self.ever and self.calls > self.n)
            if now:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args)

        return call


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk.open(tmp_path / "store")
    yield opened
    opened.close()


def writes(call: Callable[[], None]) -> int:
    """How many writes it makes when none fails."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch, n=0)
        call()
    return disk.calls


def test_central_at_each_write(desk: Desk, tmp_path: Path) -> None:
    """The site hears 507, waits, and goes on when there is room: the exact object."""
    path, info = made(tmp_path, 1, size_bytes=SIZE_BYTES)
    for n in itertools.count(1):  # as many as it takes: a piece is written as it comes
        desk.store.discard(info.digest)
        clock = Hasty()
        client = carrier(desk.url, tuning=ONE, clock=clock)
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = Disk(monkeypatch, n=n)
            client.put(path, info)
        if disk.calls < n:
            break
        assert client.transfers().retries == 1, f"write {n}"
        assert 5.0 in clock.waits, "it waited as long as the central asked"
        there = desk.store.path(info.digest)
        assert there is not None
        assert there.read_bytes() == path.read_bytes()
        assert desk.store.used_bytes == SIZE_BYTES
    assert n > 12, "a header, four pieces with a row each, sizes and the end"


def test_central_stays_full(desk: Desk, tmp_path: Path) -> None:
    """A clear failure at the site; what the central had stays, and the rest of it goes on."""
    first, held = made(tmp_path, 2, size_bytes=SIZE_BYTES)
    carrier(desk.url, tuning=ONE).put(first, held)
    path, info = made(tmp_path, 3, size_bytes=SIZE_BYTES)
    for n in (1, 4, 8):
        with pytest.MonkeyPatch.context() as monkeypatch:
            Disk(monkeypatch, n=n, ever=True)
            tuning = replace(ONE, deadline_s=0.2)
            with pytest.raises(
                Unreachable, match=r"disk is full \(No space left on device\): free"
            ):
                carrier(desk.url, tuning=tuning, clock=Hasty()).put(path, info)
        assert desk.store.path(info.digest) is None
    carrier(desk.url, tuning=ONE).get(held, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == first.read_bytes()
    carrier(desk.url, tuning=ONE).put(path, info)
    assert desk.store.path(info.digest) is not None


def test_site_at_each_write(desk: Desk, tmp_path: Path) -> None:
    """The call fails and says so; the next one goes on and leaves the exact bytes."""
    path, info = made(tmp_path, 4, size_bytes=SIZE_BYTES)
    desk.store.publish(info, path)
    folder = tmp_path / "to"
    folder.mkdir()
    calls = writes(lambda: carrier(desk.url, tuning=ONE).get(info, folder / "file"))
    assert calls >= 12
    for n in range(1, calls + 1):
        (folder / "file").unlink()
        with pytest.MonkeyPatch.context() as monkeypatch:
            Disk(monkeypatch, n=n)
            with pytest.raises(OSError, match="No space left on device"):
                carrier(desk.url, tuning=ONE).get(info, folder / "file")
        if (folder / "file").exists():  # only the name's durability failed: the bytes are right
            assert (folder / "file").read_bytes() == path.read_bytes()
        carrier(desk.url, tuning=ONE).get(info, folder / "file")
        assert (folder / "file").read_bytes() == path.read_bytes()
        assert list(folder.iterdir()) == [folder / "file"]
