"""A blob store that serves on loopback, objects to send, and clients of it: for tests.

blob_desk.py serve FOLDER PORT PIECE_BYTES           serves until it is killed
blob_desk.py put URL FILE | get URL DIGEST SIZE FILE  one transfer, with as many tries as needed
"""

import dataclasses
import json
import sys
import threading
from pathlib import Path

import numpy as np
from blake3 import blake3

from pww.central.blob_http import BlobApp
from pww.central.blobs import BlobStore
from pww.central.door import Door
from pww.clock import SystemClock
from pww.transport.blob import BlobCarrier
from pww.transport.carrier import Tuning
from pww.transport.serve import AsgiServer
from pww.transport.tls import ServerTls
from pww.wire import PayloadInfo

PIECE = 64 << 10
QUICK = Tuning(
    timeout_s=10.0, retry_first_s=0.001, retry_max_s=0.01, deadline_s=20.0, min_streams=2,
    max_streams=2, piece_bytes=PIECE,
)  # fmt: skip


class Hasty(SystemClock):
    """Never waits longer than a moment, and knows what it was asked to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return event.wait(min(timeout_s, 0.005))


@dataclasses.dataclass
class Desk:
    """A store with its port."""

    store: BlobStore
    app: BlobApp
    server: AsgiServer

    @classmethod
    def open(
        cls, folder: Path, *, quota_bytes: int = 1 << 30, replica_bytes: int = 1 << 30,
        piece_bytes: int = PIECE, port: int = 0, door: Door | None = None,
        tls: ServerTls | None = None,
    ) -> "Desk":  # fmt: skip
        clock = SystemClock()
        store = BlobStore(
            folder, quota_bytes=quota_bytes, replica_bytes=replica_bytes, clock=clock,
            piece_bytes=piece_bytes,
        )  # fmt: skip
        app = BlobApp(store, clock=clock, door=door)
        server = AsgiServer(host="127.0.0.1", port=port, key="central.port", tls=tls)
        server.start(app, name="blobs")
        return cls(store, app, server)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def close(self) -> None:
        self.server.stop()
        self.app.close()
        self.store.close()


def carrier(url: str, *, tuning: Tuning = QUICK, clock: SystemClock | None = None,
            stop: threading.Event | None = None, **more: object) -> BlobCarrier:  # fmt: skip
    return BlobCarrier(
        url, clock=clock or SystemClock(), stop=stop or threading.Event(),
        random=np.random.default_rng(1), tuning=tuning, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def info_of(data: bytes) -> PayloadInfo:
    digest = blake3(data).hexdigest()
    return PayloadInfo(codec="fp32", size_bytes=len(data), digest=digest)


def made(folder: Path, seed: int, *, size_bytes: int = (1 << 20) + 123) -> tuple[Path, PayloadInfo]:
    """A file of random bytes, and what it is."""
    data = np.random.default_rng(seed).bytes(size_bytes)
    path = folder / f"object-{seed}"
    path.write_bytes(data)
    return path, info_of(data)


def moves(client: BlobCarrier, desk: Desk, path: Path, info: PayloadInfo, *, up: bool) -> None:
    """One transfer, after which the exact bytes are at the other end."""
    if up:
        client.put(path, info)
        there = desk.store.path(info.digest)
        assert there is not None
    else:
        desk.store.publish(info, path)
        there = path.with_name("back")
        client.get(info, there)
    assert there.read_bytes() == path.read_bytes()


def main(words: list[str]) -> None:
    match words:
        case ["serve", folder, port, piece]:
            desk = Desk.open(Path(folder), port=int(port), piece_bytes=int(piece))
            print(json.dumps({"port": desk.server.port}), flush=True)
            threading.Event().wait()
        case ["put", url, file]:
            carrier(url).put(Path(file), info_of(Path(file).read_bytes()))
        case ["get", url, digest, size, file]:
            info = PayloadInfo(codec="fp32", size_bytes=int(size), digest=digest)
            carrier(url).get(info, Path(file))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
