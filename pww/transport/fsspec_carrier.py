"""The carrier for object stores and shared file systems: any URL that fsspec can open.

An object's name is its digest, so that a name is never given to other bytes. S3 shows an object
when its upload is complete; everywhere else it is written under another name and renamed. Downloads
are ranges over several connections and go on after a crash; an upload begins anew, and its deadline
counts from the last byte that moved. Nobody checks bytes at the other end, so they are checked
here: before they are sent, and when they are fetched.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pww.clock import Clock
from pww.errors import CentralError, PayloadError, Stopped
from pww.folder import sync_folder
from pww.transport.carrier import Meter, Transfers, Tuning, must_fit
from pww.transport.fsspec_place import Place
from pww.transport.fsspec_upload import STOPPED, Upload, words
from pww.transport.piece_file import PieceFile, WrongDigest
from pww.transport.retry import Retry, TryAgain, Uniform
from pww.transport.streams import Progress, Streams
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
T = TypeVar("T")
S3_PART, S3_PARTS = 8 << 20, 9_000
"""S3 takes an object in ten thousand parts at most; four of them are in memory at a time."""
S3_STREAMS = 4


class FsspecCarrier:
    """A `Carrier` to a folder or bucket such as `s3://bucket/run` or `file:///shared/run`."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        stop: threading.Event,
        random: Uniform,
        tuning: Tuning | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` are the file system's own (an endpoint, credentials); none is ever logged.

        Raises:
            StateError: the package for this kind of URL is not installed.
            CentralError: fsspec knows no such URL.
        """
        self._tuning, self._clock = tuning or Tuning(), clock
        self._stop, self._random, self._meter = stop, random, Meter()
        self._repeated = partial(self._meter.add, Transfers(retries=1))
        self._place = Place(url, options or {}, repeated=self._repeated)
        self._fs, self._shown = self._place.fs, self._place.shown

    def put(self, path: Path, info: PayloadInfo) -> None:
        """Uploads `path`; see `Carrier.put`."""
        must_fit(path, info)
        if self._stop.is_set():
            raise Stopped(STOPPED)
        retry = self._retry(self._stop)
        upload = Upload(info, self._clock, self._stop)
        start_s, sent = self._clock.monotonic(), False
        try:
            call = partial(self._place.guarded, partial(self._put, path, info, upload))
            sent = retry.run(call, what="an upload", moved_s=lambda: upload.moved_s)
        finally:
            self._meter.add(
                Transfers(
                    num_up=1, bytes_up=info.size_bytes if sent else 0, retries=retry.num_retries,
                    seconds_up=self._clock.monotonic() - start_s,
                )
            )  # fmt: skip
        upload.progress.end()

    def _put(self, path: Path, info: PayloadInfo, upload: Upload) -> bool:
        """One try; False if it was there."""
        name = self._place.name(info.digest)
        if self._place.size(name) == info.size_bytes:
            return False
        upload.begin(path)
        if "s3" in self._place.protocols:
            part = max(S3_PART, -(-info.size_bytes // S3_PARTS))
            self._fs.put_file(
                str(path), name, callback=upload.callback(streams=S3_STREAMS), chunksize=part,
                max_concurrency=S3_STREAMS,
            )  # fmt: skip
        else:
            self._put_and_rename(path, name, upload)
        size_bytes = self._place.size(name)
        if size_bytes != info.size_bytes:
            raise TryAgain(f"{size_bytes} bytes are there after an upload of {info.size_bytes}")
        return True

    def _put_and_rename(self, path: Path, name: str, upload: Upload) -> None:
        self._fs.makedirs(self._place.root, exist_ok=True)
        part = f"{name}.{secrets.token_hex(4)}.part"
        local = "file" in self._place.protocols
        try:
            if local:
                upload.copy(path, Path(part))
            else:
                self._fs.put_file(str(path), part, callback=upload.callback(streams=1))
            self._fs.mv(part, name)
        except BaseException:
            if self._fs.exists(part):
                self._fs.rm_file(part)
            raise
        if local:
            sync_folder(Path(self._place.root))

    def get(self, info: PayloadInfo, path: Path) -> None:
        """Downloads to `path`; see `Carrier.get`."""
        progress = Progress(words("downloading", info), total_bytes=info.size_bytes,
                            clock=self._clock)  # fmt: skip
        try:
            try:
                self._get(info, path, progress)
            except WrongDigest as why:
                log.warning("%s: all of it is downloaded anew", why)
                self._repeated()
                try:
                    self._get(info, path, progress)
                except WrongDigest as again:
                    raise PayloadError(
                        f"{again}; so it was twice: the object is damaged at {self._shown}; remove "
                        "it there"
                    ) from again
        finally:
            self._meter.add(
                Transfers(num_down=1, bytes_down=progress.moved_bytes, seconds_down=progress.end())
            )

    def _get(self, info: PayloadInfo, path: Path, progress: Progress) -> None:
        name, guarded = self._place.name(info.digest), self._place.guarded
        retry = self._retry(self._stop)
        size_bytes = retry.run(lambda: guarded(lambda: self._place.size(name)), what="a question")
        if size_bytes != info.size_bytes:
            there = "is not there" if size_bytes < 0 else f"has {size_bytes} bytes there"
            raise CentralError(
                f"object {info.digest[:16]}… of {info.size_bytes} bytes {there}: it was never "
                f"complete at {self._shown}, or was removed"
            )
        file = PieceFile(
            path, digest=info.digest, size_bytes=info.size_bytes,
            piece_bytes=self._tuning.piece_bytes,
        )  # fmt: skip
        halt = threading.Event()
        pieces_retry = self._retry(halt)

        def fetch(peer: _NoPeer, number: int) -> None:
            start, stop = file.span(number)
            data = guarded(lambda: self._fs.cat_file(name, start=start, end=stop))
            if len(data) != stop - start:
                raise TryAgain(f"{len(data)} bytes came of {stop - start}")
            file.write(data, start)
            file.finish(number)
            progress.add(len(data))

        try:
            pieces = file.missing()
            progress.rest(sum(stop - start for start, stop in map(file.span, pieces)))
            Streams(
                fetch, connect=_NoPeer, retry=pieces_retry, halt=halt, progress=progress,
                tuning=self._tuning, clock=self._clock, stop=self._stop, meanwhile=file.advance,
            ).run(pieces)  # fmt: skip
            file.publish(path)
        finally:
            file.close()
            self._meter.add(Transfers(retries=retry.num_retries + pieces_retry.num_retries))

    def remove(self, name: str) -> None:
        """Removes an object, or what `contents` names; nothing happens if there is none.

        Raises:
            CentralError: that is not allowed, or there was no answer within the deadline.
            Stopped: somebody asked to stop.
        """
        there = self._place.name(name)

        def drop() -> None:
            if self._place.size(there) >= 0:
                self._fs.rm_file(there)

        self._ask(drop, what="a removal")

    def contents(self) -> dict[str, str]:
        """What is there under names that carriers give: objects and unfinished uploads of files.

        The value differs once an object is another one or an upload got on.

        Raises:
            CentralError, Stopped: as `remove`.
        """
        return self._ask(self._place.contents, what="a list")

    def transfers(self) -> Transfers:
        """What was moved so far."""
        return self._meter.read()

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _ask(self, call: Callable[[], T], *, what: str) -> T:
        retry = self._retry(self._stop)
        try:
            return retry.run(lambda: self._place.guarded(call), what=what)
        finally:
            self._meter.add(Transfers(retries=retry.num_retries))

    def _retry(self, stop: threading.Event) -> Retry:
        return Retry(
            self._shown, first_s=self._tuning.retry_first_s, max_s=self._tuning.retry_max_s,
            deadline_s=self._tuning.deadline_s, clock=self._clock, stop=stop, random=self._random,
        )  # fmt: skip


class _NoPeer:
    """The file system has its own connections."""

    def drop(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """What is under way ends by itself."""

    def interrupt(self) -> bool:
        """Nor can it be ended to begin again."""
        return False

    def moved(self) -> float:
        """Nobody knows before it is over."""
        return 0.0

    def round_trip_s(self) -> float:
        """Nobody knows."""
        return 0.0
