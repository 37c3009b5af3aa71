"""The ranks of a replica as the crew of its uploads: they hear of errands where they met.

    pww/errand/RANK   what a rank is to bring, "" once it need not; rank 0 writes it
    pww/report/RANK   what became of it; the rank writes it

A thread of each rank looks there twice a second, with a connection of its own, while the rank
trains. No collective takes part: a rank that is slow, or gone, holds nobody up.
That store asks nobody who he is, and an errand has the session's token and names a file to send:
both are sealed with a key in the run's folder, RUN/crew.key, which its owner alone can read.
"""

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.fernet import Fernet, InvalidToken
from torch._C._distributed_c10d import Store

from pww.clock import Clock
from pww.config.schema import Config
from pww.trainer.ranks import Ranks
from pww.transport.blob_crew import carry
from pww.transport.crew import Asked, Crew, Errand, Report

log = logging.getLogger(__name__)
KEY = "crew.key"
LOOK_S = 0.5
CLOSE_S = 10.0


def crew_of(
    config: Config, ranks: Ranks, *, run: Path, clock: Clock, stack: ExitStack
) -> Crew | None:
    """Rank 0's crew, where there is one; on the others it begins to listen, until `stack` closes.

    Every rank calls it, and none waits for another. `run` is the run's folder.

    Raises:
        OSError: the key cannot be written.
    """
    if config.site.outbound == "first" or config.central.url == "none" or ranks.world == 1:
        return None
    if ranks.rank == 0:
        seal = Seal.make(run / KEY)
        stack.callback((run / KEY).unlink, missing_ok=True)
        return StoreCrew(ranks.store(), seal, size=ranks.world - 1)
    hand = Hand(ranks.store(), Seal(run / KEY), rank=ranks.rank, clock=clock)
    hand.start()
    stack.callback(hand.close)
    return None


class Seal:
    """Rows that only who can read the key's file can read or write.

    Source of the format: the Fernet specification (AES-128-CBC and HMAC-SHA-256).
    """

    def __init__(self, path: Path) -> None:
        """The key is read when it is needed: rank 0 may be slower than we are."""
        self._path = path
        self._key: Fernet | None = None

    @classmethod
    def make(cls, path: Path) -> "Seal":
        """A new key; an older life's is of no use any more.

        Raises:
            OSError: it cannot be written.
        """
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(Fernet.generate_key())
        return cls(path)

    def closed(self, row: dict[str, Any]) -> str:
        """The row, sealed."""
        return self._fernet().encrypt(json.dumps(row).encode()).decode()

    def opened(self, data: bytes) -> dict[str, Any]:
        """The row; {} for what nobody of this run has sealed."""
        try:
            row: dict[str, Any] = json.loads(self._fernet().decrypt(data))
        except (InvalidToken, OSError, ValueError) as fault:
            log.debug("no row of this run's crew: %r", fault)
            return {}
        return row

    def _fernet(self) -> Fernet:
        if self._key is None:
            self._key = Fernet(self._path.read_bytes())
        return self._key


class StoreCrew:
    """Rank 0's side."""

    def __init__(self, store: Store, seal: Seal, *, size: int) -> None:
        """`store` is for this object alone."""
        self._store, self._seal, self._size, self._count = store, seal, size, 0

    @property
    def size(self) -> int:
        """The ranks beside this one."""
        return self._size

    def begin(self, errands: Sequence[Errand]) -> Asked:
        """Asks rank 1 for the first errand, and so on."""
        self._count += 1
        for rank, errand in enumerate(errands, start=1):
            row = {"number": self._count, **asdict(errand)}
            self._store.set(_errand_of(rank), self._seal.closed(row))
        return _Asked(self._store, self._seal, self._count, len(errands))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The errands of one upload."""

    store: Store
    seal: Seal
    number: int
    num: int

    def reports(self) -> list[Report]:
        """Those that came."""
        found = []
        for rank in range(1, self.num + 1):
            row = _read(self.store, self.seal, _report_of(rank))
            if row.pop("number", 0) == self.number:
                found.append(Report(**row))
        return found

    def end(self) -> None:
        """Takes them back."""
        for rank in range(1, self.num + 1):
            self.store.set(_errand_of(rank), "")


class Hand:
    """Another rank's side: a thread that brings what it is asked for."""

    def __init__(self, store: Store, seal: Seal, *, rank: int, clock: Clock) -> None:
        """`store` is for its thread alone."""
        self._store, self._seal, self._rank, self._clock = store, seal, rank, clock
        self._over, self._withdrawn = threading.Event(), threading.Event()
        self._number, self._looked_s = 0, 0.0
        self._thread = threading.Thread(target=self._listen, daemon=True, name="crew")

    def start(self) -> None:
        """Begins to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stops what is going on, and ends the thread."""
        self._over.set()
        self._withdrawn.set()
        self._thread.join(CLOSE_S)

    def _listen(self) -> None:
        try:
            while not self._clock.wait(self._over, LOOK_S):
                row = _read(self._store, self._seal, _errand_of(self._rank))
                if row.get("number", 0) > self._number:
                    self._bring(row)
        except RuntimeError as fault:  # rank 0 is gone, and with it the store
            log.debug("no more errands for rank %d: %s", self._rank, fault)

    def _bring(self, row: dict[str, Any]) -> None:
        self._number, self._looked_s = row.pop("number"), self._clock.monotonic()
        if not self._over.is_set():
            self._withdrawn.clear()
        missing = tuple((start, stop) for start, stop in row.pop("missing"))
        report = carry(
            Errand(missing=missing, **row), rank=self._rank, clock=self._clock,
            random=np.random.default_rng(), stop=self._withdrawn, meanwhile=self._look,
        )  # fmt: skip
        told = {"number": self._number, **asdict(report)}
        self._store.set(_report_of(self._rank), self._seal.closed(told))

    def _look(self) -> None:
        """Whether the errand still stands."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            row = _read(self._store, self._seal, _errand_of(self._rank))
            if row.get("number", 0) != self._number or self._over.is_set():
                self._withdrawn.set()


def _errand_of(rank: int) -> str:
    return f"pww/errand/{rank}"


def _report_of(rank: int) -> str:
    return f"pww/report/{rank}"


def _read(store: Store, seal: Seal, key: str) -> dict[str, Any]:
    """What stands there; {} if nothing does. A key is never deleted: a `get` would wait for it."""
    data = store.get(key) if store.check([key]) else b""
    return seal.opened(data) if data else {}
