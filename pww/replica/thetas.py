"""The thetas that a site holds, and how it gets the next one with as few bytes as it can.

    theta/theta-000003.safetensors    fp32, plain: its SHA-256 is the state hash

In the steady state one update comes and is subtracted from the theta that is here. A site that is a
few rounds behind applies the updates one by one; theta comes whole where there is no base, where
the updates would be larger, and where the outcome is not the central's to the bit.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pww.errors import CentralError, PayloadError, PwwError, Refused, StateError
from pww.folder import write_durably
from pww.transport.exchange import Theta
from pww.transport.tensorfile import state_hash
from pww.transport.update import apply_update, worth
from pww.wire import Invitation, PayloadInfo, Update

log = logging.getLogger(__name__)
KEEP = 2
"""Theta files that stay: the one being trained from, and the next."""
Fetch = Callable[[PayloadInfo, Path], None]
"""Downloads a file, whole and right, or raises."""


@dataclass(slots=True)
class Came:
    """How thetas came so far."""

    whole: int = 0
    updates: int = 0
    repairs: int = 0  # updates whose outcome was not the central's
    size_bytes: int = 0


class Thetas:
    """One folder of theta files; `fetch` is None where nothing can be downloaded."""

    def __init__(self, folder: Path, *, fetch: Fetch | None) -> None:
        self._folder, self._fetch = folder, fetch
        self._hashes: dict[Path, str] = {}
        self.came = Came()
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.payload*"):
            left.unlink()

    def receive(self, invitation: Invitation, data: bytes | None) -> Theta:
        """Theta of an invitation, on disk; `data` is the file that lay beside it.

        Raises:
            PayloadError: it is not the central's.
            StateError: it did not come and cannot be fetched.
            PwwError: the disk refused.
        """
        before = self.came.size_bytes
        try:
            path = self._receive(invitation, data)
        except OSError as fault:
            raise PwwError(
                f"cannot write to {self._folder}: {fault.strerror}. Free space there and resume "
                "this run"
            ) from fault
        for old in sorted(self._folder.glob("theta-*.safetensors"))[:-KEEP]:
            if old != path:
                self._forget(old)
        for left in self._folder.glob("*.safetensors.*"):  # a download that theta moved on from
            left.unlink()
        return Theta(
            invitation.round, path, invitation.state_hash, invitation.report,
            invitation.committed_windows, self.came.size_bytes - before,
        )  # fmt: skip

    def _receive(self, invitation: Invitation, data: bytes | None) -> Path:
        if invitation.payload is None or invitation.payload.codec != "fp32":
            raise PayloadError(f"theta of round {invitation.round} does not come as fp32")
        path = self._path(invitation.round)
        if path.exists() and self._hash(path) == invitation.state_hash:
            return path
        beside = data if invitation.beside == "update" else None
        steps = self._steps(invitation, beside)
        if steps and self._advance(steps, beside):
            return path
        return self._whole(invitation, data if invitation.beside == "theta" else None)

    def _steps(self, invitation: Invitation, beside: bytes | None) -> Sequence[Update]:
        """The updates from the newest theta here to the invitation's; none if whole is better."""
        rounds = [self._round(path) for path in self._folder.glob("theta-*.safetensors")]
        newest = max((number for number in rounds if number < invitation.round), default=-1)
        steps = [one for one in invitation.updates if one.round > newest]
        numbers = [one.round for one in steps]
        if newest < 0 or numbers != list(range(newest + 1, invitation.round + 1)):
            return ()
        missing = steps if beside is None else steps[:-1]
        if missing and self._fetch is None:
            return ()
        assert invitation.payload is not None
        better = invitation.beside == "update" or worth(steps, invitation.payload)
        return steps if better else ()

    def _advance(self, steps: Sequence[Update], beside: bytes | None) -> bool:
        """Applies updates one by one; False if one does not lead to the central's theta."""
        for number, step in enumerate(steps):
            base, path = self._path(step.round - 1), self._path(step.round)
            payload = self._folder / f"update-{step.round:06d}.payload"
            data = beside if number == len(steps) - 1 else None
            try:
                self._get(step.payload, payload, data)
                found = apply_update(base, payload, step.payload, path)
            except Refused:
                raise
            except CentralError as fault:  # it may be gone at the central, and theta not
                log.warning("the update of round %d cannot be had: %s", step.round, fault)
                return False
            except PayloadError as fault:
                log.warning("the update of round %d cannot be used: %s", step.round, fault)
                found = ""
            finally:
                payload.unlink(missing_ok=True)
            if found != step.state_hash:
                self.came.repairs += 1
                log.warning(
                    "theta of round %d has state hash %s after its update, the central's is %s: it "
                    "is downloaded whole", step.round, found or "none", step.state_hash,
                )  # fmt: skip
                self._forget(path)
                return False
            self._hashes[path] = found
            self.came.updates += 1
            if number:  # far behind, all those between would fill the disk
                self._forget(self._path(step.round - 2))
        return True

    def _whole(self, invitation: Invitation, data: bytes | None) -> Path:
        """Theta as it is; into a name of its own, so that a wrong one replaces nothing."""
        assert invitation.payload is not None
        if data is None and self._fetch is None:
            raise StateError(
                f"theta of round {invitation.round} is not here and cannot be downloaded from this "
                "central: start this run again, a new process is sent all of it"
            )
        path = self._path(invitation.round)
        self._get(invitation.payload, path, data)
        self._hashes.pop(path, None)
        found = self._hash(path)
        if found != invitation.state_hash:
            self._forget(path)
            raise PayloadError(
                f"theta of round {invitation.round} has state hash {found}, the central's is "
                f"{invitation.state_hash}: its tensors are not the central's"
            )
        self.came.whole += 1
        return path

    def _get(self, info: PayloadInfo, path: Path, data: bytes | None) -> None:
        """Puts a file on disk that came beside the message, or is downloaded."""
        if data is not None:
            write_durably(path, data)
        else:
            assert self._fetch is not None
            self._fetch(info, path)
        self.came.size_bytes += info.size_bytes

    def _hash(self, path: Path) -> str:
        """The state hash of a file here, "" if it is damaged."""
        if path not in self._hashes:
            try:
                self._hashes[path] = state_hash(path)
            except PayloadError as fault:
                log.warning("%s cannot be used: %s", path, fault)
                self._hashes[path] = ""
        return self._hashes[path]

    def _path(self, round_: int) -> Path:
        return self._folder / f"theta-{round_:06d}.safetensors"

    def _round(self, path: Path) -> int:
        number = path.stem.removeprefix("theta-")
        return int(number) if number.isdecimal() else -1

    def _forget(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._hashes.pop(path, None)
