"""The last rounds' updates, for sites that are a few rounds behind: a chain that ends at theta.

    updates/round-000003.payload    a hard link where the disk has them
    updates/round-000003.json       what it leads from and to

It is kept for as long as all of it together is smaller than theta: beyond that a site is better off
with the whole. Nothing depends on it: what is missing or does not fit after a crash is dropped, and
sites download theta.
"""

import os
import re
import shutil
from pathlib import Path

from pydantic import ValidationError

from pww.central.generations import Generation
from pww.folder import write_durably
from pww.transport.update import worth
from pww.wire import Digest, Message, PayloadInfo, Update

MAX_UPDATES = 64
"""An invitation names them all."""
_NAME = re.compile(r"round-\d{6,18}\.(json|payload)(\.part)?\Z")


class _Link(Message):
    """One `.json`: the update, and the state hash of the theta that it starts from."""

    base_hash: Digest
    update: Update


class Updates:
    """The folder `updates` of a central's state folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._links: list[_Link] = []  # consecutive rounds, oldest first
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def chain(self) -> tuple[Update, ...]:
        """Consecutive updates, oldest first; the last one leads to the current theta."""
        return tuple(link.update for link in self._links)

    def path(self, update: Update) -> Path:
        """An update's payload."""
        return self._folder / f"round-{update.round:06d}.payload"

    def recover(self, current: Generation) -> None:
        """Goes on with what a process before this one left; drops what does not lead here."""
        links: list[_Link] = []
        wanted_round, wanted_hash = current.info.round, current.info.state_hash
        while len(links) < MAX_UPDATES:
            link = self._read(wanted_round)
            if link is None or link.update.state_hash != wanted_hash:
                break
            links.insert(0, link)
            wanted_round, wanted_hash = wanted_round - 1, link.base_hash
        self._links = links
        kept = {self.path(link.update).stem for link in links}
        for path in self._folder.iterdir():
            if _NAME.match(path.name) and path.name.split(".")[0] not in kept:
                path.unlink()
        self._trim(current.info.theta)

    def add(self, base: Generation, current: Generation) -> None:
        """The update that made `current` from `base`, if there is one, is kept from now on.

        Raises:
            OSError: it could not be written; the chain is empty then.
        """
        info = current.info
        if info.update is None:
            self._drop(len(self._links))
            return
        update = Update(round=info.round, state_hash=info.state_hash, payload=info.update)
        link = _Link(base_hash=base.info.state_hash, update=update)
        path = self.path(update)
        try:
            path.unlink(missing_ok=True)
            try:
                os.link(current.update, path)
            except OSError:  # a disk without links
                shutil.copyfile(current.update, path)
            write_durably(path.with_suffix(".json"), link.model_dump_json().encode())
        except OSError:
            self._drop(len(self._links))
            raise
        self._links.append(link)
        self._trim(info.theta)

    def _trim(self, whole: PayloadInfo) -> None:
        """The longest chain that is worth its bytes stays."""
        while self._links and not (len(self._links) <= MAX_UPDATES and worth(self.chain, whole)):
            self._drop(1)

    def _drop(self, count: int) -> None:
        dropped, self._links = self._links[:count], self._links[count:]
        for link in dropped:
            path = self.path(link.update)
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def _read(self, number: int) -> _Link | None:
        path = self._folder / f"round-{number:06d}.json"
        try:
            link = _Link.model_validate_json(path.read_text())
            size_bytes = self.path(link.update).stat().st_size
        except (OSError, ValidationError, ValueError):
            return None
        fits = link.update.round == number and size_bytes == link.update.payload.size_bytes
        return link if fits else None
