"""One upload to a file system across its tries: for people, for its deadline, and for the stop."""

import os
import threading
from pathlib import Path
from typing import Any

from pww.clock import Clock
from pww.errors import PayloadError, Stopped
from pww.transport.digest import file_digest
from pww.transport.streams import Progress
from pww.wire import PayloadInfo

CHUNK = 4 << 20
ENOUGH = 3
STOPPED = "stopped in the middle of an upload; it begins anew"


class Upload:
    """Knows when it last got on (`moved_s`), says so to people, and ends when a stop is asked for.

    Its bytes are looked at once, with the first try. Once all of them were sent `ENOUGH` times,
    sending them again is no getting on: it is something else that fails.
    """

    def __init__(self, info: PayloadInfo, clock: Clock, stop: threading.Event) -> None:
        self._info, self._clock, self._stop = info, clock, stop
        what = words("uploading", info)
        self.progress = Progress(what, total_bytes=info.size_bytes, clock=clock)
        self.moved_s = clock.monotonic()
        self._checked, self._times, self._sent_bytes = False, 0, 0

    def begin(self, path: Path) -> None:
        """All of it is sent, from the first byte; with the first try it is looked at.

        Raises:
            PayloadError: it is not what was announced.
        """
        if not self._checked:
            with path.open("rb") as file:
                found = file_digest(file)
            if found != self._info.digest:
                raise PayloadError(
                    f"{path.name} has BLAKE3 {found}, announced was {self._info.digest}: write it "
                    "again"
                )
            self._checked, self.moved_s = True, self._clock.monotonic()
        self._sent_bytes = 0
        self.progress.rest(self._info.size_bytes)

    def moved(self, num_bytes: int, *, streams: int) -> None:
        """Bytes got there.

        Raises:
            Stopped: somebody asked to stop.
        """
        if self._stop.is_set():
            raise Stopped(STOPPED)
        if num_bytes > 0:
            if self._times < ENOUGH:
                self.moved_s = self._clock.monotonic()
            self._sent_bytes += num_bytes
            self._times += self._sent_bytes >= self._info.size_bytes
            self.progress.add(num_bytes)
        self.progress.speak(streams)

    def copy(self, source: Path, target: Path) -> None:
        """Writes a durable copy: fsspec's own tells nobody how it gets on."""
        with source.open("rb") as reader, target.open("wb") as writer:
            while chunk := reader.read(CHUNK):
                writer.write(chunk)
                self.moved(len(chunk), streams=1)
            writer.flush()
            os.fsync(writer.fileno())

    def callback(self, *, streams: int) -> Any:
        """What fsspec calls as it gets on."""
        from fsspec.callbacks import Callback

        moved = self.moved

        class Watch(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                moved(inc, streams=streams)

        return Watch()


def words(verb: str, info: PayloadInfo) -> str:
    """How a transfer is called in the log."""
    return f"{verb} {info.digest[:12]}…"
