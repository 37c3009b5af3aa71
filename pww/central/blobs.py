"""The blob store on disk: immutable objects by their BLAKE3, uploaded by sites or published by us.

    FOLDER/objects/DIGEST                        complete: checked, durable, never changed
    FOLDER/uploads/DIGEST+SIZE+REPLICA.part      on its way in, with a `.done` beside it

A published file stays where its owner has it. What survives a crash: every complete object and all
finished pieces; what is published is told again by its owner. A digest is checked to be 64 hex
digits before it is part of a path. Each replica has its own upload of an object, so that nobody can
spoil another's; whichever is complete first is the object.

Ages are counted from the last use or the start of this process, by the monotonic clock.
"""

import re
import threading
from collections.abc import Collection
from pathlib import Path

from pww.central.blob_upload import BlobFault, Upload, no_room
from pww.clock import Clock
from pww.errors import StateError
from pww.transport.blob_wire import BEGIN_AGAIN, FULL, BlobState
from pww.transport.piece_file import MAX_PIECES, runs
from pww.wire import PayloadInfo

MAX_BEGUN = 64
"""Unfinished uploads of one replica; another one costs it the oldest."""
MAX_OPEN = 256
"""Uploads whose files are open; who begins many and finishes none takes no more than these."""
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_REPLICA = re.compile(r"([a-z0-9][a-z0-9_.-]{0,31}/[a-z0-9][a-z0-9_.-]{0,31})?\Z")
_UPLOAD = re.compile(r"([0-9a-f]{64})\+([0-9]{1,19})\+[a-z0-9_.+-]*\Z")


class BlobStore:
    """Thread-safe. Uploads and uploaded objects together stay within `quota_bytes`."""

    def __init__(
        self,
        folder: Path,
        *,
        quota_bytes: int,
        replica_bytes: int,
        clock: Clock,
        piece_bytes: int = 4 << 20,
    ) -> None:
        """Opens what an earlier process left. `replica_bytes` bounds one replica's uploads.

        Raises:
            StateError: the folder cannot be used.
        """
        self._objects, self._uploads = folder / "objects", folder / "uploads"
        self._quota_bytes, self._replica_bytes = quota_bytes, replica_bytes
        self._piece_bytes, self._clock = piece_bytes, clock
        self._lock = threading.RLock()
        self._published: dict[str, tuple[Path, int]] = {}
        self._taken: set[str] = set()
        self._complete: dict[str, int] = {}  # uploaded objects -> bytes
        self._open: dict[str, Upload] = {}  # by file name
        self._reserved: dict[str, int] = {}  # uploads on their way -> bytes; open or not
        self._used_s: dict[str, float] = {}  # last use by digest or upload's name
        try:
            for path in (self._objects, self._uploads):
                path.mkdir(parents=True, exist_ok=True)
            self._scan()
        except OSError as why:
            raise StateError(
                f"the blob store {folder} cannot be used ({why}): make room or give it another "
                "folder"
            ) from why

    def _scan(self) -> None:
        """Finds what is there, and removes what can only be rubbish."""
        now_s = self._clock.monotonic()
        for path in self._objects.iterdir():
            if _DIGEST.match(path.name):
                self._complete[path.name] = path.stat().st_size
                self._used_s[path.name] = now_s
            else:
                path.unlink()
        for path in self._uploads.iterdir():
            found = _UPLOAD.match(path.stem)
            if found and path.suffix in (".part", ".done"):
                self._reserved[path.stem] = int(found[2])
                self._used_s[path.stem] = now_s
            else:
                path.unlink()

    # ------------------------------------------------------------------------- complete objects

    def path(self, digest: str) -> Path | None:
        """The complete object with this digest, published or uploaded."""
        with self._lock:
            published, size_bytes = self._published.get(digest, (None, 0))
            if published is not None and _is_whole(published, size_bytes):
                return published
            if digest not in self._complete:
                return None
            if not _is_whole(self._objects / digest, self._complete[digest]):
                self.discard(digest)  # somebody was at the folder: it is brought again
                return None
            self._used_s[digest] = self._clock.monotonic()
            return self._objects / digest

    def publish(self, info: PayloadInfo, path: Path) -> None:
        """Offers an existing immutable file under its digest, without a copy, until `withdraw`.

        Raises:
            StateError: it has not the size that `info` says.
        """
        size_bytes = path.stat().st_size
        if size_bytes != info.size_bytes:
            raise StateError(
                f"{path} has {size_bytes} bytes, {info.size_bytes} were announced: it is damaged; "
                "restore it"
            )
        with self._lock:
            self._published[info.digest] = (path, size_bytes)

    def withdraw(self, digest: str) -> None:
        """Ends a `publish`, if there is one; downloads that are being read go on."""
        with self._lock:
            self._published.pop(digest, None)

    def take(self, digest: str) -> Path | None:
        """An uploaded object for the central's own use; it stays until `discard`."""
        with self._lock:
            path = self.path(digest)
            if path is None or digest not in self._complete:
                return None
            self._taken.add(digest)
            return self._objects / digest

    def discard(self, digest: str) -> None:
        """Removes an uploaded object; nothing happens if there is none."""
        with self._lock:
            self._taken.discard(digest)
            if self._complete.pop(digest, None) is not None:
                self._used_s.pop(digest, None)
                (self._objects / digest).unlink(missing_ok=True)

    def collect(self, keep: Collection[str], *, older_than_s: float) -> int:
        """Removes what was not used for so long: objects not in `keep` nor taken, and uploads.

        Returns how many bytes are free again.
        """
        with self._lock:
            limit_s = self._clock.monotonic() - older_than_s
            stale = [name for name, used_s in self._used_s.items() if used_s <= limit_s]
            before = self.used_bytes
            for name in stale:
                if name in self._reserved:
                    self._forget(name)
                elif name not in keep and name not in self._taken:
                    self.discard(name)
            return before - self.used_bytes

    @property
    def used_bytes(self) -> int:
        """What counts towards the quota."""
        with self._lock:
            return sum(self._complete.values()) + sum(self._reserved.values())

    # ---------------------------------------------------------------------------------- uploads

    def begin(self, digest: str, size_bytes: int, *, replica: str) -> BlobState:
        """Begins an upload or goes on with it.

        Raises:
            BlobFault: no room (507).
            OSError: the disk failed.
        """
        if self.path(digest) is not None:
            return BlobState(complete=True, piece_bytes=self._piece_bytes, missing=[])
        with self._lock:
            name = _name(digest, size_bytes, replica)
            if name not in self._reserved:
                self._must_have_room(name, size_bytes, replica)
            upload = self._upload(name, digest, size_bytes)
        return BlobState(
            complete=False, piece_bytes=self._piece_bytes, missing=runs(upload.missing())
        )

    def upload(self, digest: str, size_bytes: int, *, replica: str) -> Upload:
        """An upload that was begun, in this process or an earlier one.

        Raises:
            BlobFault: it was not, or was collected (409).
            OSError: the disk failed.
        """
        name = _name(digest, size_bytes, replica)
        with self._lock:
            if name not in self._reserved:
                raise BlobFault("no such upload: begin again", status=BEGIN_AGAIN)
            return self._upload(name, digest, size_bytes)

    def forget(self, digest: str, size_bytes: int, *, replica: str) -> None:
        """Gives up an upload; nothing happens if there is none."""
        with self._lock:
            self._forget(_name(digest, size_bytes, replica))

    def commit(self, digest: str, size_bytes: int, *, replica: str) -> BlobState:
        """Checks the whole and makes it an object. May take long; a repeated call is fine.

        Raises:
            BlobFault: pieces are missing (409); other bytes came (422): they stay, for the pieces
                to be checked; no room.
            OSError: the disk failed; it can be tried again.
        """
        done = BlobState(complete=True, piece_bytes=self._piece_bytes, missing=[])
        if self.path(digest) is not None:
            with self._lock:
                self._forget(_name(digest, size_bytes, replica))
            return done
        upload = self.upload(digest, size_bytes, replica=replica)
        name = _name(digest, size_bytes, replica)
        try:
            upload.publish(self._objects / digest)
        except FileNotFoundError as why:  # somebody was at the folder
            with self._lock:
                self._forget(name)
            raise BlobFault("the upload is gone: begin again", status=BEGIN_AGAIN) from why
        with self._lock:
            if not (self._objects / digest).exists():  # another's equal one was used up meanwhile
                self._forget(name)
                raise BlobFault("the object was taken and removed: begin again", status=BEGIN_AGAIN)
            self._complete[digest] = size_bytes
            self._used_s[digest] = self._clock.monotonic()
            self._forget(name)
        return done

    def close(self) -> None:
        """Lets go of the files; uploads go on in another process."""
        with self._lock:
            for upload in self._open.values():
                upload.close()
            self._open.clear()

    def _upload(self, name: str, digest: str, size_bytes: int) -> Upload:
        self._used_s[name] = self._clock.monotonic()
        if name not in self._open:
            while len(self._open) >= MAX_OPEN:  # each has two files open; it goes on when asked for
                idle = min(self._open, key=lambda one: self._used_s.get(one, 0.0))
                self._open.pop(idle).close()
            with no_room():
                self._open[name] = Upload(
                    self._uploads / name, digest=digest, size_bytes=size_bytes,
                    piece_bytes=self._piece_bytes,
                )  # fmt: skip
            self._reserved[name] = size_bytes
        return self._open[name]

    def _must_have_room(self, name: str, size_bytes: int, replica: str) -> None:
        if size_bytes > MAX_PIECES * self._piece_bytes:
            raise BlobFault(f"{size_bytes} bytes are too many for any store", status=413)
        left = self._quota_bytes - self.used_bytes
        if size_bytes > left:
            raise BlobFault(
                f"the blob store has {max(left, 0) / 1e6:.1f} MB of {self._quota_bytes / 1e6:.1f} "
                f"MB left, {size_bytes / 1e6:.1f} MB were announced: wait, or raise its quota at "
                "the central",
                status=FULL,
            )
        owner = _owner(replica)
        begun = [other for other in self._reserved if other.endswith(owner)]
        if len(begun) >= MAX_BEGUN:  # it would have finished them long ago
            self._forget(min(begun, key=lambda other: self._used_s.get(other, 0.0)))
        theirs = sum(size for other, size in self._reserved.items() if other.endswith(owner))
        if theirs + size_bytes > self._replica_bytes:
            raise BlobFault(
                f"{replica or 'this peer'} has uploads of {theirs / 1e6:.1f} MB under way and "
                f"announced {size_bytes / 1e6:.1f} MB more, {self._replica_bytes / 1e6:.1f} MB is "
                "the limit: finish those first, or raise it at the central",
                status=FULL,
            )

    def _forget(self, name: str) -> None:
        """Removes an upload with its files; nothing happens if there is none."""
        upload = self._open.pop(name, None)
        if upload is not None:
            upload.discard()
        for suffix in (".done", ".part"):
            (self._uploads / (name + suffix)).unlink(missing_ok=True)
        self._reserved.pop(name, None)
        self._used_s.pop(name, None)


def _name(digest: str, size_bytes: int, replica: str) -> str:
    """The file name of an upload: nothing but hex digits and a replica id gets into a path."""
    assert _DIGEST.match(digest), "digests are validated where they come in"
    assert _REPLICA.match(replica), "replica ids are validated where they come in"
    return f"{digest}+{size_bytes}{_owner(replica)}"


def _owner(replica: str) -> str:
    return f"+{replica.replace('/', '+')}"


def _is_whole(path: Path, size_bytes: int) -> bool:
    """Whether a file is there in its full length."""
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False
