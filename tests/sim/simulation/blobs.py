"""The blob store, simulated: what its HTTP would carry travels as one call over the network.

Objects lie in the central's folder, through the same disk as everything else. What it keeps of the
real ones: an object appears whole and verified or not at all, and a published file is read from
where its owner has it, as long as it is there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from blake3 import blake3
from simulation.kernel import Machine, running
from simulation.network import Network

from pww.errors import CentralError
from pww.folder import write_durably
from pww.transport.carrier import Transfers
from pww.transport.retry import Retry, TryAgain
from pww.wire import PayloadInfo


class Store:
    """`pww.central.blobs.BlobStore` of one life of the central."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._published: dict[str, Path] = {}
        folder.mkdir(exist_ok=True)

    def publish(self, info: PayloadInfo, path: Path) -> None:
        self._published[info.digest] = path

    retries = 0

    def has(self, info: PayloadInfo) -> bool:
        return True

    def withdraw(self, info: PayloadInfo) -> None:
        self._published.pop(info.digest, None)

    def take(self, info: PayloadInfo) -> Path | None:
        return self._find(info.digest)

    def _find(self, digest: str) -> Path | None:
        path = self._folder / digest
        return path if path.exists() else self._published.get(digest)

    def discard(self, info: PayloadInfo) -> None:
        (self._folder / info.digest).unlink(missing_ok=True)

    def sweep(self) -> None:
        """No run is so long."""

    # -- what comes in

    def put(self, digest: str, data: bytes) -> None:
        if blake3(data).hexdigest() != digest:
            raise TryAgain("HTTP 422")
        try:
            write_durably(self._folder / digest, data)
        except OSError as why:
            raise TryAgain(f"HTTP 507 {why}") from why

    def get(self, digest: str) -> bytes | None:
        path = self._find(digest)
        return path.read_bytes() if path is not None and path.exists() else None


class Carrier:
    """`pww.transport.carrier.Carrier` over the simulated network."""

    def __init__(
        self, network: Network, to: Machine, store: Callable[[], Store], *, clock: Any, stop: Any,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self._network, self._to, self._store, self._timeout_s = network, to, store, timeout_s
        machine = running()
        assert machine is not None
        self._retry = Retry(
            "the blob store", first_s=0.5, max_s=5.0, clock=clock, stop=stop, random=machine.world
        )

    def put(self, path: Path, info: PayloadInfo) -> None:
        data = path.read_bytes()
        self._call(lambda: self._store().put(info.digest, data))

    def get(self, info: PayloadInfo, path: Path) -> None:
        data = self._call(lambda: self._store().get(info.digest))
        if data is None or blake3(data).hexdigest() != info.digest:
            raise CentralError(f"{info.digest} is not there (any more): ask what is current")
        write_durably(path, data)

    def transfers(self) -> Transfers:
        return Transfers()

    def close(self) -> None:
        """Nothing is open."""

    def _call(self, handle: Callable[[], object]) -> Any:
        return self._retry.run(
            lambda: self._network.call(self._to, handle, timeout_s=self._timeout_s),
            what="a blob",
        )
