"""Checkpoints of an allocation: one folder a phase, complete or absent, for all of its replicas.

    checkpoints/phase-000003/
        entry.json                  what was offered and its verdict, as in a replica's outbox
        round.json                  what the outer step did, to close the round after a crash
        inner/0 ... inner/k-1       each replica's optimiser, step, RNG and buffers
        residual-0.safetensors ...  what encoding lost of each replica's deltas

Theta and the outer momentum are the generation of the same round. Rank 0 of the allocation writes
what is not said to be a replica's.
"""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

from pww.errors import CheckpointError
from pww.folder import sync_folder, sync_tree, write_durably
from pww.log import JsonLines
from pww.replica import entry as entries
from pww.replica.entry import Entry
from pww.wire import RoundReport, Verdict

log = logging.getLogger(__name__)
ROUND = "round.json"


class Checkpoints:
    """The phases of one run's folder. `last` is the newest complete one, on every rank."""

    def __init__(self, run: Path, *, keep: int, is_first: bool) -> None:
        """Raises CheckpointError if the newest one cannot be read. Not collective."""
        self.run, self._folder, self._keep = run, run / "checkpoints", keep
        self._draws: JsonLines | None = None
        if is_first:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in self._folder.glob("*.part"):
                shutil.rmtree(part)
            self._draws = JsonLines(run / "draws.jsonl")
        folders = self._phases()
        self.last: Entry | None = entries.read(folders[-1]) if folders else None

    @property
    def pending(self) -> Entry | None:
        """The phase whose round may not be closed yet."""
        return self.last if self.last is not None and self.last.verdict is None else None

    @property
    def part(self) -> Path:
        """Where the next phase is written."""
        number = 0 if self.last is None else int(self.last.folder.name.removeprefix("phase-")) + 1
        return self._folder / f"phase-{number:06d}.part"

    def begin(self) -> None:
        """Makes the folder of the next phase; rank 0."""
        final = self.part.with_suffix("")
        try:
            (self.part / "inner").mkdir(parents=True)
        except OSError as why:
            raise entries.cannot_write(final, why) from why

    def complete(self, entry: Entry, report: RoundReport | None, drawn: list[int]) -> None:
        """The phase as `part` holds it becomes a whole one; rank 0.

        Raises:
            CheckpointError: it could not be written; the one before it is intact.
        """
        part, final = self.part, self.part.with_suffix("")
        leases = [leased.lease for leased in entry.offer.spans]
        try:
            assert self._draws is not None
            self._draws.write(
                {"delta": entry.offer.delta, "lease": leases[0], "windows": drawn}, durable=True
            )
            if report is not None:
                write_durably(part / ROUND, report.model_dump_json(indent=1).encode())
            entries.write(replace(entry, folder=part))
            sync_tree(part)
            part.rename(final)
            sync_folder(self._folder)
        except OSError as why:
            self.discard()
            raise entries.cannot_write(final, why) from why
        self._collect()

    def discard(self) -> None:
        """Gives the next phase up; rank 0."""
        shutil.rmtree(self.part, ignore_errors=True)

    def settle(self, entry: Entry, verdict: Verdict) -> None:
        """Notes the verdict durably; rank 0.

        Raises:
            CheckpointError: it could not be noted; the ledger knows it.
        """
        try:
            entries.write(replace(entry, verdict=verdict))
        except OSError as why:
            raise entries.cannot_write(entry.folder, why) from why

    def report(self, entry: Entry) -> RoundReport:
        """What the outer step of a phase did.

        Raises:
            CheckpointError: it is damaged.
        """
        path = entry.folder / ROUND
        try:
            return RoundReport.model_validate_json(json.dumps(json.loads(path.read_text())))
        except (OSError, ValueError) as why:
            raise CheckpointError(
                f"{path} cannot be read ({str(why).partition(chr(10))[0]}): remove "
                f"{entry.folder} to go on from the phase before it"
            ) from why

    def close(self) -> None:
        """Lets go of the draw log; safe to call twice."""
        if self._draws is not None:
            self._draws.close()

    def _phases(self) -> list[Path]:
        return sorted(self._folder.glob("phase-??????"))

    def _collect(self) -> None:
        for old in self._phases()[: -self._keep]:
            entries.discard(old)


def residual_of(folder: Path, replica: int) -> Path:
    """Where a replica's residual is, in the folder of a phase."""
    return folder / f"residual-{replica}.safetensors"


def inner_of(folder: Path, replica: int) -> Path:
    """Where a replica's inner state is."""
    return folder / "inner" / str(replica)
