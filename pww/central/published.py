"""What the central publishes: theta as a generation, and the updates that lead to it.

Files that may be downloaded are put on a shelf (the blob store) under their digest, and taken off
when they are collected: updates with the chain, theta a round after it was current.
"""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from pww.central.generations import Generation, Generations, Sound, name_of, sound
from pww.central.merge import shapes_of
from pww.central.updates import Updates
from pww.errors import StateError
from pww.wire import Digest, PayloadInfo, Update

log = logging.getLogger(__name__)
Shapes = Mapping[str, tuple[int, ...]]


class Shelf(Protocol):
    """Where files are handed out by their digest."""

    def publish(self, info: PayloadInfo, path: Path) -> None:
        """An immutable file may be downloaded from now on."""

    def has(self, info: PayloadInfo) -> bool:
        """Whether it can be, by now: what is far away takes its time."""

    def withdraw(self, info: PayloadInfo) -> None:
        """It may not any more."""

    @property
    def retries(self) -> int:
        """Requests so far that were repeats."""


class Published:
    """Theta of the current round and the chain of updates; `shelf` is None where nobody asks."""

    def __init__(self, state: Path, *, shelf: Shelf | None = None) -> None:
        self.generations = Generations(state / "generations")
        self._updates = Updates(state / "updates")
        self._shelf = shelf
        self._shelved: dict[Digest, PayloadInfo] = {}
        self._current: Generation | None = None
        self._sound: Sound = sound
        self._retries = 0
        self.shapes: Shapes = {}

    @property
    def is_there(self) -> bool:
        """Whether theta(0) has come."""
        return self._current is not None

    @property
    def is_out(self) -> bool:
        """Whether sites can fetch all that leads to the current theta."""
        return self._shelf is None or all(map(self._shelf.has, self._shelved.values()))

    def retried(self) -> int:
        """The shelf's requests that were repeats, since this was asked for the last time."""
        if self._shelf is None:
            return 0
        before, self._retries = self._retries, self._shelf.retries
        return self._retries - before

    @property
    def current(self) -> Generation:
        """The generation of the current round, known to be undamaged.

        Raises:
            StateError: there is none yet, or it is damaged.
        """
        if self._current is None:
            raise StateError("theta(0) has not come yet: start a site, the first one seeds the run")
        self._sound(wait=True)
        return self._current

    @property
    def updates(self) -> tuple[Update, ...]:
        """Consecutive updates, oldest first; the last one leads to the current theta."""
        return self._updates.chain

    def update_path(self, update: Update) -> Path:
        """An update's payload."""
        return self._updates.path(update)

    def check(self) -> None:
        """Raises StateError if the current generation is known by now to be damaged."""
        self._sound(wait=False)

    def needed(self) -> tuple[Path, ...]:
        """Files without which no round can go on."""
        one = self._current
        if one is None:
            return ()
        return (one.theta, one.momentum, *(() if one.residual is None else (one.residual,)))

    def recover(self, name: str, *, round_: int, spare: int = -1) -> None:
        """Goes on with the generation that the ledger names ("" for none); sweeps the others.

        That of round `spare` stays too: it waits for its round to be closed.

        Raises:
            StateError: it is not there, not readable, or damaged (a large one: later).
        """
        if not name:
            self.generations.refuse_orphans()
            self.generations.collect(keep=())
            return
        others = {name_of(one) for one in (round_ - 1, spare) if one >= 0}
        self.generations.collect(keep={name} | others)
        generation = self.generations.open(name)
        self._sound = self.generations.verify(generation)
        self._updates.recover(generation)
        self._set(generation)

    def publish(self, generation: Generation, *, base: Generation | None = None) -> None:
        """`generation` is the current one from now on, made from `base`."""
        if base is not None:
            try:
                self._updates.add(base, generation)
            except OSError as why:
                log.warning(
                    "the update of round %d is not kept (%s): sites download theta whole",
                    generation.info.round, why,
                )  # fmt: skip
        self._set(generation, before=base)
        if base is not None:
            self.generations.collect(keep={generation.name, base.name})

    def _set(self, generation: Generation, *, before: Generation | None = None) -> None:
        """Theta of the round before stays on the shelf: somebody may be in the middle of it."""
        self._current, self.shapes = generation, shapes_of(generation)
        if self._shelf is None:
            return
        chain = {one.payload.digest: (one.payload, self.update_path(one)) for one in self.updates}
        thetas = [one for one in (before, generation) if one is not None]
        files = {one.info.theta.digest: (one.info.theta, one.theta) for one in thetas} | chain
        self._withdraw(self._shelved.keys() - files.keys())
        for digest, (info, path) in files.items():
            if digest not in self._shelved:
                self._shelf.publish(info, path)
                self._shelved[digest] = info

    def _withdraw(self, digests: Collection[Digest]) -> None:
        assert self._shelf is not None
        for digest in list(digests):
            self._shelf.withdraw(self._shelved.pop(digest))
