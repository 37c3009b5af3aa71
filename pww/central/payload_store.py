"""Payloads of deltas without a verdict, each a durable file, checked while it is copied in.

What survives a crash: every payload whose `put` returned. One without a row in the ledger is swept
at the next start; its site sends it again.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from pww.errors import PayloadError
from pww.folder import sync_folder
from pww.transport.digest import file_digest, new_digest
from pww.wire import PayloadInfo

CHUNK = 4 << 20
_ID = re.compile(r"[0-9a-f]{32}\Z")


class PayloadStore:
    """A folder of `<delta>.payload` files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, delta: str) -> Path:
        """Where a delta's payload is, or would be; nothing but an id's hex digits makes a name."""
        assert _ID.match(delta), "ids are validated where they come in"
        return self.folder / f"{delta}.payload"

    def put(self, delta: str, source: Path, info: PayloadInfo, *, durable: bool = False) -> Path:
        """Copies `source` in; it is durable and what `info` says when this returns.

        A `durable` one gets a second name where the disk has them, instead of a copy; its bytes are
        looked at all the same.

        Raises:
            PayloadError: other bytes than announced; nothing is kept.
            OSError: it could not be written (disk full); nothing is kept.
        """
        final = self.path(delta)
        part = final.with_name(final.name + ".part")
        part.unlink(missing_ok=True)
        try:
            if durable and _linked(source, part):
                with part.open("rb") as file:
                    digest = file_digest(file)
            else:
                digest = _copy(source, part, limit_bytes=info.size_bytes)
            size = part.stat().st_size
            if size != info.size_bytes or digest != info.digest:
                raise PayloadError(
                    f"payload of delta {delta}: {info.size_bytes} bytes with BLAKE3 "
                    f"{info.digest} were announced, {size} (or more) with {digest} came: damaged "
                    "on the way; send it again"
                )
            part.replace(final)
        except (OSError, PayloadError):
            part.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        return final

    def has(self, delta: str, info: PayloadInfo) -> bool:
        """Whether a file of the right size is there."""
        try:
            return self.path(delta).stat().st_size == info.size_bytes
        except FileNotFoundError:
            return False

    def drop(self, delta: str) -> None:
        """Forgets a payload; nothing happens if there is none."""
        self.path(delta).unlink(missing_ok=True)

    def sweep(self, keep: Collection[str]) -> None:
        """Removes every file that is not the payload of a delta in `keep`."""
        names = {f"{delta}.payload" for delta in keep}
        for path in self.folder.iterdir():
            if path.name not in names:
                path.unlink()


def _linked(source: Path, part: Path) -> bool:
    try:
        os.link(source, part)
    except OSError:  # a disk without links, or another disk
        return False
    return True


def _copy(source: Path, part: Path, *, limit_bytes: int) -> str:
    """A durable copy and its BLAKE3; of a file that is too long one chunk more is enough."""
    digest, size = new_digest(), 0
    with source.open("rb") as reader, part.open("wb") as writer:
        while size <= limit_bytes and (chunk := reader.read(CHUNK)):
            size += len(chunk)
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()
