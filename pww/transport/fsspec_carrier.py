"""The carrier for object stores and shared file systems: any URL that fsspec can open.

An object's name is its digest, so that a name is never given to other bytes. S3 shows an object
when its upload is complete; everywhere else it is written under another name and renamed. Downloads
are ranges over several connections and go on after a crash; an upload begins anew. Nobody checks
bytes at the other end, so they are checked here: before they are sent, and when they are fetched.
"""

import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pww.clock import Clock
from pww.errors import CentralError, PayloadError, PwwError, StateError, Stopped
from pww.folder import sync_folder
from pww.transport.carrier import Meter, Transfers, Tuning, must_fit
from pww.transport.digest import file_digest
from pww.transport.piece_file import PieceFile, WrongDigest
from pww.transport.retry import Retry, TryAgain, Uniform
from pww.transport.streams import Progress, Streams
from pww.wire import PayloadInfo

log = logging.getLogger(__name__)
T = TypeVar("T")
S3_PART, S3_PARTS = 8 << 20, 9_000
"""S3 takes an object in ten thousand parts at most; four of them are in memory at a time."""
S3_STREAMS = 4
STOPPED = "stopped in the middle of an upload; it begins anew"


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
        import fsspec

        self._shown = without_credentials(url)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(
                url, **{**_defaults(url), **(options or {})}
            )
        except ImportError as why:
            raise StateError(
                f"{self._shown} needs a package that is not installed ({why}): for s3:// it is "
                "pip install 'pww[s3]'"
            ) from why
        except ValueError as why:
            raise CentralError(
                f"{self._shown} is no URL that fsspec can open ({why}): give one like "
                "s3://bucket/run or file:///shared/run"
            ) from None
        protocols = self._fs.protocol
        self._protocols = (protocols,) if isinstance(protocols, str) else tuple(protocols)
        self._url, self._tuning, self._clock = url, tuning or Tuning(), clock
        self._stop, self._random, self._meter = stop, random, Meter()

    def put(self, path: Path, info: PayloadInfo) -> None:
        """Uploads `path`; see `Carrier.put`."""
        must_fit(path, info)
        with path.open("rb") as file:
            found = file_digest(file)
        if found != info.digest:
            raise PayloadError(
                f"{path.name} has BLAKE3 {found}, announced was {info.digest}: write it again"
            )
        if self._stop.is_set():
            raise Stopped(STOPPED)
        retry, progress = self._retry(self._stop), self._progress("uploading", info)
        try:
            call = partial(self._guarded, partial(self._put, path, info, progress))
            retry.run(call, what="an upload")
        finally:
            self._meter.add(
                Transfers(
                    num_up=1, bytes_up=progress.moved_bytes, retries=retry.num_retries,
                    seconds_up=progress.end(),
                )
            )  # fmt: skip

    def _put(self, path: Path, info: PayloadInfo, progress: Progress) -> None:
        name = self._name(info.digest)
        if self._size(name) == info.size_bytes:
            return
        if "s3" in self._protocols:
            part = max(S3_PART, -(-info.size_bytes // S3_PARTS))
            self._fs.put_file(
                str(path), name, callback=self._watch(progress), chunksize=part,
                max_concurrency=S3_STREAMS,
            )  # fmt: skip
        else:
            self._put_and_rename(path, name, progress)
        size_bytes = self._size(name)
        if size_bytes != info.size_bytes:
            raise TryAgain(f"{size_bytes} bytes are there after an upload of {info.size_bytes}")
        progress.add(info.size_bytes)

    def _put_and_rename(self, path: Path, name: str, progress: Progress) -> None:
        self._fs.makedirs(self._root, exist_ok=True)
        part = f"{name}.{secrets.token_hex(4)}.part"
        try:
            self._fs.put_file(str(path), part, callback=self._watch(progress))
            if "file" in self._protocols:
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
            self._fs.mv(part, name)
        except BaseException:
            if self._fs.exists(part):
                self._fs.rm_file(part)
            raise
        if "file" in self._protocols:
            sync_folder(Path(self._root))

    def get(self, info: PayloadInfo, path: Path) -> None:
        """Downloads to `path`; see `Carrier.get`."""
        progress = self._progress("downloading", info)
        try:
            try:
                self._get(info, path, progress)
            except WrongDigest as why:
                log.warning("%s: all of it is downloaded anew", why)
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
        name = self._name(info.digest)
        retry = self._retry(self._stop)
        size_bytes = retry.run(lambda: self._guarded(lambda: self._size(name)), what="a question")
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
            data = self._guarded(lambda: self._fs.cat_file(name, start=start, end=stop))
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

    def remove(self, digest: str) -> None:
        """Removes an object; nothing happens if there is none.

        Raises:
            CentralError: that is not allowed, or there was no answer within the deadline.
        """
        name = self._name(digest)

        def drop() -> None:
            if self._size(name) >= 0:
                self._fs.rm_file(name)

        self._retry(self._stop).run(lambda: self._guarded(drop), what="a removal")

    def transfers(self) -> Transfers:
        """What was moved so far."""
        return self._meter.read()

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _name(self, digest: str) -> str:
        return f"{self._root.rstrip('/')}/{digest}"

    def _size(self, name: str) -> int:
        """Bytes of an object; -1 if there is none."""
        self._fs.invalidate_cache()
        try:
            return int(self._fs.info(name)["size"])
        except FileNotFoundError:
            return -1

    def _guarded(self, call: Callable[[], T]) -> T:
        """Runs a call of fsspec; its many kinds of faults become what the retry loop knows."""
        try:
            return call()
        except (PwwError, TryAgain):
            raise
        except PermissionError as why:
            raise CentralError(
                f"{self._shown} does not let this process in ({self._clean(why)}): check its "
                "credentials and permissions"
            ) from why
        except FileNotFoundError as why:
            raise CentralError(
                f"{self._shown}: {self._clean(why)}: make the bucket or folder, or check the URL"
            ) from why
        except Exception as why:  # botocore's and aiohttp's faults have no common class
            raise TryAgain(f"{type(why).__name__}: {self._clean(why)}") from why

    def _clean(self, why: BaseException) -> str:
        return str(why).replace(self._url, self._shown)[:200]

    def _retry(self, stop: threading.Event) -> Retry:
        return Retry(
            self._shown, first_s=self._tuning.retry_first_s, max_s=self._tuning.retry_max_s,
            deadline_s=self._tuning.deadline_s, clock=self._clock, stop=stop, random=self._random,
        )  # fmt: skip

    def _progress(self, verb: str, info: PayloadInfo) -> Progress:
        what = f"{verb} {info.digest[:12]}…"
        return Progress(what, total_bytes=info.size_bytes, clock=self._clock)

    def _watch(self, progress: Progress) -> Any:
        """A callback that ends an upload when somebody asks to stop."""
        from fsspec.callbacks import Callback

        stop = self._stop

        class Watch(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                if stop.is_set():
                    raise Stopped(STOPPED)

        return Watch()


class _NoPeer:
    """The file system has its own connections."""

    def drop(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """What is under way ends by itself."""


def _defaults(url: str) -> dict[str, Any]:
    """Options of a file system that hold unless others are given.

    S3's own checksum of a whole object comes with a range of it from stores that are not Amazon's,
    and botocore then calls the range damaged. The digest is checked here anyway.
    """
    if url.partition("://")[0] not in ("s3", "s3a"):
        return {}
    return {"config_kwargs": {"response_checksum_validation": "when_required"}}


def without_credentials(url: str) -> str:
    """A URL fit for a log."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
