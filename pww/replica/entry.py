"""One phase in the outbox: what it offers, where its files lie, its row on disk.

entry.json              the offer (without incarnation), counters, and later the verdict
delta.safetensors       the payload; dropped with the verdict
residual.safetensors    what encoding lost; holds once the delta is merged
inner/                  optimiser, step and RNG state after the phase
"""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from pww.errors import CheckpointError
from pww.folder import write_durably
from pww.wire import Offer, PayloadInfo, Verdict

log = logging.getLogger(__name__)
NOTHING = PayloadInfo(
    codec="none",
    size_bytes=0,
    digest="af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
)
"""The payload of a delta that is not finite: no bytes (their BLAKE3)."""

DELTA = "delta.safetensors"
RESIDUAL = "residual.safetensors"


@dataclass(frozen=True, slots=True)
class Entry:
    """One phase, done and durable. `tokens_total` and `step` count over the replica's life."""

    folder: Path
    offer: Offer
    step: int
    tokens_total: int
    verdict: Verdict | None

    @property
    def payload(self) -> Path:
        """Where the delta's bytes are."""
        return self.folder / DELTA

    @property
    def residual(self) -> Path:
        """Where the residual is that holds after this delta, if there is one."""
        return self.folder / RESIDUAL

    @property
    def inner(self) -> Path:
        """Where the inner state after the phase is."""
        return self.folder / "inner"


def unsent(pending: Entry | None) -> tuple[int, ...]:
    """Leases of a phase without verdict: a resumed run offers it, or closes its round, again."""
    return () if pending is None else tuple(span.lease for span in pending.offer.spans)


def discard(folder: Path) -> None:
    """Removes an old phase in one instant: a part is swept on opening. One that stays is told."""
    part = folder.with_name(folder.name + ".part")
    try:
        folder.rename(part)
        shutil.rmtree(part)
    except OSError as why:
        log.warning("%s is not needed any more and cannot be removed: %s", folder, why)


def write(entry: Entry) -> None:
    """Writes the entry's row, durably; raises OSError."""
    row = {
        "offer": entry.offer.model_dump(mode="json"),
        "step": entry.step,
        "tokens_total": entry.tokens_total,
        "verdict": None if entry.verdict is None else entry.verdict.model_dump(mode="json"),
    }
    write_durably(entry.folder / "entry.json", json.dumps(row, indent=1).encode())


def read(folder: Path) -> Entry:
    """The entry of a phase's folder.

    Raises:
        CheckpointError: its row is not what `write` wrote.
    """
    try:
        row = json.loads((folder / "entry.json").read_text())
        verdict = row["verdict"]
        return Entry(
            folder=folder,
            offer=Offer.model_validate_json(json.dumps(row["offer"])),
            step=int(row["step"]),
            tokens_total=int(row["tokens_total"]),
            verdict=None if verdict is None else Verdict.model_validate_json(json.dumps(verdict)),
        )
    except (OSError, ValueError, KeyError, TypeError) as why:
        reason = str(why).partition("\n")[0]  # pydantic's goes on for many lines
        raise CheckpointError(
            f"{folder} cannot be read ({reason}): remove it to go on from the phase before it"
        ) from why


def cannot_write(final: Path, why: Exception) -> CheckpointError:
    """What is said when a phase's folder, or something in it, cannot be written."""
    return CheckpointError(
        f"cannot write {final}: {why}. The checkpoints before it are intact: make room, then go on "
        f"with resume={final.parent.parent}"
    )
