"""Payloads in the central's own blob store: what sites brought there, and what sites fetch there.

It is on this disk: nothing is moved. Where payloads go by an object store or a shared folder it is
`objects` that does this.
"""

import logging
from pathlib import Path

from pww.central.blobs import BlobStore
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
FORGOTTEN_S = 86_400.0


class Blobs:
    """`Carried` and `Shelf` over our own store."""

    retries = 0
    """Sites repeat requests, and count them; the store makes none."""

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

    def has(self, info: PayloadInfo) -> bool:
        """At once."""
        return True

    def withdraw(self, info: PayloadInfo) -> None:
        """Ends that."""
        self._store.withdraw(info.digest)
