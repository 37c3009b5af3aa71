"""The central's end of the carriers: payloads that sites brought, files that sites fetch.

    blobs      our own store, on this disk: nothing is moved
    objects    an object store or a shared folder: brought here before a merge, put there after it

What is put there or brought here is waited for by whoever merges; the invitation to a round goes
out when its files can be had.
"""

import logging
import threading
from pathlib import Path

from pww.central.blobs import BlobStore
from pww.clock import Clock
from pww.errors import CentralError, PayloadError, Stopped
from pww.transport.fsspec_carrier import FsspecCarrier
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
FORGOTTEN_S, AGAIN_S = 86_400.0, 5.0


class Blobs:
    """`Carried` and `Shelf` over our own store."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def take(self, info: PayloadInfo) -> Path | None:
        """An uploaded object, or one that we publish: equal bytes are one object."""
        return self._store.take(info.digest) or self._store.path(info.digest)

    def discard(self, info: PayloadInfo) -> None:
        """Removes an upload."""
        self._store.discard(info.digest)

    def sweep(self) -> None:
        """Removes what nobody asked about for a day: uploads of sites that never came back."""
        freed = self._store.collect(keep=(), older_than_s=FORGOTTEN_S)
        if freed:
            log.info("%.1f MB of uploads that nobody finished are removed", freed / 1e6)

    def publish(self, info: PayloadInfo, path: Path) -> None:
        """Offers a file where it is."""
        self._store.publish(info, path)

    def withdraw(self, info: PayloadInfo) -> None:
        """Ends that."""
        self._store.withdraw(info.digest)


class Objects:
    """`Carried` and `Shelf` over an fsspec URL; `folder` holds what was brought here."""

    def __init__(
        self, carrier: FsspecCarrier, folder: Path, *, clock: Clock, stop: threading.Event
    ) -> None:
        self._carrier, self._folder, self._clock, self._stop = carrier, folder, clock, stop
        self._published: dict[str, tuple[PayloadInfo, Path]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():
            left.unlink()

    def take(self, info: PayloadInfo) -> Path | None:
        """Brings an object here; None if it cannot be had, and the log says why."""
        path = self._folder / info.digest
        try:
            if not path.exists():
                self._carrier.get(info, path)
        except CentralError as why:
            log.error("a payload cannot be fetched: %s", why)
            return None
        except PayloadError as why:
            log.error("a payload cannot be used: %s", why)
            self.discard(info)  # a site does not put again what is there with the right size
            return None
        return path

    def discard(self, info: PayloadInfo) -> None:
        """Removes it here, and there if it is not what we publish: theta(0) is what a site put."""
        (self._folder / info.digest).unlink(missing_ok=True)
        if info.digest not in self._published:
            self._remove(info)

    def sweep(self) -> None:
        """Puts there again what somebody removed; what sites left is for its owner to remove."""
        for info, path in tuple(self._published.values()):
            if path.exists():
                self._put(info, path)

    def _put(self, info: PayloadInfo, path: Path) -> bool:
        try:
            self._carrier.put(path, info)
        except CentralError as why:
            log.error("a file for the sites cannot be put there: %s", why)
            return False
        return True

    def publish(self, info: PayloadInfo, path: Path) -> None:
        """Puts a file there; until that is possible nothing goes on, and the log says so.

        Raises:
            Stopped: the stop was asked for meanwhile.
        """
        while not self._put(info, path):
            if self._clock.wait(self._stop, AGAIN_S):
                raise Stopped("stopped while theta was put where sites fetch it; it is durable")
        self._published[info.digest] = (info, path)

    def withdraw(self, info: PayloadInfo) -> None:
        """Removes it there; if that fails it stays, and the log says so."""
        self._published.pop(info.digest, None)
        self._remove(info)

    def _remove(self, info: PayloadInfo) -> None:
        try:
            self._carrier.remove(info.digest)
        except CentralError as why:
            log.warning("an object that is not needed any more stays: %s", why)
