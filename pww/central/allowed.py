"""Which key may speak for which replica: `allowed.json`, read again as soon as it changes.

The file is small and is replaced whole, so one look at its name on every request is enough to obey
`pww.central revoke` at once, without a restart and without a cache that could grow.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pww.errors import StateError
from pww.folder import write_durably
from pww.transport.site_key import fingerprint
from pww.wire import Digest, Message, Pem, ReplicaId

log = logging.getLogger(__name__)
FILE = "allowed.json"


class AllowedFile(Message):
    """The file's content. A key that was withdrawn stays listed: it never comes back."""

    replicas: Annotated[dict[ReplicaId, Pem], Field(max_length=10_000)]  # public keys
    revoked: tuple[Digest, ...] = ()  # fingerprints


@dataclass(frozen=True, slots=True)
class AllowedKeys:
    """One state of the file, as lookups."""

    by_replica: Mapping[str, str] = field(default_factory=dict)  # -> fingerprint
    by_pem: Mapping[str, str] = field(default_factory=dict)  # -> replica


class Allowed:
    """The keys that are allowed now. Thread-safe: a state is replaced, never changed."""

    def __init__(self, folder: Path) -> None:
        """Reads `folder/allowed.json`.

        Raises:
            StateError: it is missing or damaged.
        """
        self._path = folder / FILE
        self._name = str(self._path)  # looked at on every request
        self._stamp = (0, 0, 0)
        self._keys = AllowedKeys()
        self.now()

    def now(self) -> AllowedKeys:
        """The state of this moment.

        Raises:
            StateError: the file is gone or damaged; nobody can be let in until it is mended.
        """
        try:
            found = os.stat(self._name)
        except OSError as why:
            raise _unreadable(self._path, str(why)) from why
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            content = read_allowed(self._path.parent)
            replicas = content.replicas
            self._keys = AllowedKeys(
                by_replica={name: fingerprint(pem) for name, pem in replicas.items()},
                by_pem={pem: name for name, pem in replicas.items()},
            )
            self._stamp = stamp  # last: another thread sees the old stamp and reads once more
            log.info("%d replicas have a key (%s)", len(replicas), self._path)
        return self._keys


def read_allowed(folder: Path) -> AllowedFile:
    """The content of `folder/allowed.json`.

    Raises:
        StateError: it is missing or damaged.
    """
    path = folder / FILE
    try:
        content = AllowedFile.model_validate_json(path.read_bytes())
    except OSError as why:
        raise _unreadable(path, str(why)) from why
    except ValidationError as why:
        raise _unreadable(path, f"{why.error_count()} faults in it") from why
    doubled = len(set(content.replicas.values())) != len(content.replicas)
    if doubled or {fingerprint(pem) for pem in content.replicas.values()} & set(content.revoked):
        raise _unreadable(path, "a key that is there twice or was revoked")
    return content


def write_allowed(folder: Path, *, replicas: Mapping[str, str], revoked: Iterable[str]) -> None:
    """Replaces `folder/allowed.json`; a running central obeys it with its next request."""
    content = {"replicas": dict(sorted(replicas.items())), "revoked": sorted(set(revoked))}
    write_durably(folder / FILE, (json.dumps(content, indent=2) + "\n").encode(), private=True)


def _unreadable(path: Path, why: str) -> StateError:
    return StateError(
        f"{path} cannot be used ({why}): nobody is let in until it is there again as python -m "
        "pww.central init, add and revoke write it"
    )
