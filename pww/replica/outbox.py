"""The outbox: before a delta is sent, everything it stands for is durable in one folder of the run.

    checkpoints/phase-000003/
        entry.json          the offer (without incarnation), counters, and later the verdict
        delta.safetensors   the payload; dropped with the verdict
        inner/              optimiser, step and RNG state after the phase

A folder is complete or absent: it is written as `.part`, fsynced and renamed. What survives a
crash: the newest complete phase, whose delta is offered again on resume (a delta id counts once),
and the one before it.
"""

import json
import logging
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import torch

from pww.codec import Codec
from pww.errors import CheckpointError, NotFiniteError, PayloadError, PwwError
from pww.folder import sync_folder, sync_tree, write_durably
from pww.log import JsonLines
from pww.trainer.api import EvalResult, PhaseResult, Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Theta
from pww.transport.payload import write_payload
from pww.transport.tensorfile import TensorReader
from pww.wire import Lease, Leased, Offer, PayloadInfo, PhaseMetrics, Verdict

log = logging.getLogger(__name__)

NOTHING = PayloadInfo(
    codec="none",
    size_bytes=0,
    sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)
"""The payload of a delta that is not finite: no bytes (their SHA-256)."""


LARGEST = 1e30
"""Largest loss, norm or drift that a message can tell; beyond it a phase has diverged."""
MAX_RATE = 1e9
"""Tokens per second that a message can tell; a phase can be shorter than the clock's tick."""


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
        return self.folder / "delta.safetensors"

    @property
    def inner(self) -> Path:
        """Where the inner state after the phase is."""
        return self.folder / "inner"


class Outbox:
    """The phases of one replica on disk. Every method that takes the trainer is collective."""

    def __init__(self, run: Path, *, ranks: Ranks, codec: Codec, keep: int) -> None:
        self._folder = run / "checkpoints"
        self._ranks, self._codec, self._keep = ranks, codec, keep
        self._draws: JsonLines | None = None
        self._merged_here = False  # a delta of this process was
        self._forgotten = False  # this folder's last merged delta is not the central's
        self.last: Entry | None = None
        if ranks.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in self._folder.glob("*.part"):
                shutil.rmtree(part)
        self.last = ranks.local(self._newest)
        if ranks.rank == 0:
            self._draws = JsonLines(run / "draws.jsonl")

    @property
    def pending(self) -> Entry | None:
        """The entry whose verdict is not known yet."""
        return self.last if self.last is not None and self.last.verdict is None else None

    @property
    def merged(self) -> str:
        """Id of this replica's last merged delta, "" if none: the next delta's `prev`.

        "" too once the first delta of this process was rejected: a folder that lost its newest
        phases names an old one, and every delta after it would be rejected. The central takes ""
        from a process of which it merged nothing yet.
        """
        if self.last is None or self._forgotten:
            return ""
        verdict = self.last.verdict
        merged = verdict is not None and verdict.outcome == "merged"
        return self.last.offer.delta if merged else self.last.offer.prev

    def put(
        self,
        trainer: Trainer,
        theta: Theta,
        result: PhaseResult,
        lease: Lease,
        *,
        run: str,
        partial: bool,
        held_out: EvalResult | None,
    ) -> Entry:
        """Makes one finished phase durable and returns it; collective.

        Raises:
            CheckpointError: it could not be written (disk full, say); the one before it is intact.
            PayloadError: theta on the disk is damaged, or not the trainer's; likewise.
        """
        number = 0 if self.last is None else int(self.last.folder.name.removeprefix("phase-")) + 1
        final = self._folder / f"phase-{number:06d}"
        part = final.with_name(final.name + ".part")
        fault: PwwError | None = None
        payload, norm, drift, finite = NOTHING, 0.0, 0.0, True
        differences = _Differences(trainer, theta.path if self._ranks.rank == 0 else None)
        if self._ranks.rank == 0:
            try:
                part.mkdir()
                _require_told("loss", result.loss)
                payload = write_payload(
                    part / "delta.safetensors", iter(differences), trainer.shapes(), self._codec
                )
                _require_told("norm", differences.norm)
                _require_told("drift", differences.drift)
                norm, drift = differences.norm, differences.drift
            except NotFiniteError as why:
                log.error("delta of %s is not finite and will not be sent: %s", final.name, why)
                payload, finite = NOTHING, False
                (part / "delta.safetensors").unlink(missing_ok=True)
            except PayloadError as why:
                fault = why
            except OSError as why:
                fault = _cannot_write(final, why)
        differences.drain()  # all ranks gather every tensor, whatever happened on rank 0
        if fault is not None:
            self._discard(part)
        self._ranks.agree_on_fault(fault)
        try:
            trainer.save_inner(part / "inner")
        except CheckpointError as why:
            self._discard(part)
            raise _cannot_write(final, why) from why

        if held_out is not None and not abs(held_out.loss) <= LARGEST:
            held_out = None  # a message carries numbers only

        def finish() -> Entry:
            metrics = PhaseMetrics(
                steps=result.steps,
                tokens=result.tokens,
                loss=result.loss if abs(result.loss) <= LARGEST else 0.0,
                phase_seconds=result.seconds,
                tokens_per_s=min(result.tokens / max(result.seconds, 1e-9), MAX_RATE),
                drift=drift,
                delta_norm=norm,
                held_out_loss=-1.0 if held_out is None else held_out.loss,
                held_out_tokens=0 if held_out is None else held_out.tokens,
            )
            offer = Offer(
                run=run,
                replica=lease.replica,
                incarnation="0" * 32,
                delta=uuid4().hex,
                prev=self.merged,
                base_round=theta.round,
                base_hash=theta.state_hash,
                spans=(Leased(lease=lease.id, span=lease.span),),
                tokens=result.tokens,
                partial=partial,
                finite=finite,
                payload=payload,
                metrics=metrics,
            )
            total = result.tokens + (0 if self.last is None else self.last.tokens_total)
            entry = Entry(part, offer, trainer.step, total, None)
            try:
                assert self._draws is not None
                self._draws.write(
                    {"delta": offer.delta, "lease": lease.id, "windows": list(result.drawn)},
                    durable=True,
                )
                _write(entry)
                sync_tree(part)
                part.rename(final)
                sync_folder(self._folder)
            except OSError as why:
                self._discard(part)
                raise _cannot_write(final, why) from why
            self._collect()
            return replace(entry, folder=final)

        self.last = self._ranks.local(finish)
        return self.last

    def settle(self, verdict: Verdict) -> None:
        """Notes the verdict durably; the payload is no longer needed. Collective.

        Raises:
            CheckpointError: it could not be noted; a resumed run offers the delta again, and its id
                counts once.
        """
        assert self.last is not None
        entry = replace(self.last, verdict=verdict)

        def note() -> None:
            try:
                _write(entry)
                entry.payload.unlink(missing_ok=True)
            except OSError as why:
                raise _cannot_write(entry.folder, why) from why

        self._ranks.local(note)
        self.last = entry
        self._merged_here |= verdict.outcome == "merged"
        self._forgotten = entry.offer.finite and not self._merged_here

    def close(self) -> None:
        """Lets go of the draw log; safe to call twice."""
        if self._draws is not None:
            self._draws.close()

    def _newest(self) -> Entry | None:
        folders = sorted(self._folder.glob("phase-??????"))
        return _read(folders[-1]) if folders else None

    def _collect(self) -> None:
        """Removes the oldest phases, each in one instant: a part is swept on opening."""
        for old in sorted(self._folder.glob("phase-??????"))[: -self._keep]:
            part = old.with_name(old.name + ".part")
            try:
                old.rename(part)
                shutil.rmtree(part)
            except OSError as why:
                log.warning("%s is not needed any more and cannot be removed: %s", old, why)

    def _discard(self, part: Path) -> None:
        if self._ranks.rank == 0:
            shutil.rmtree(part, ignore_errors=True)


class _Differences:
    """theta_outer - theta_inner, tensor by tensor; every rank takes part in each gather."""

    def __init__(self, trainer: Trainer, theta: Path | None) -> None:
        self._tensors = trainer.tensors()
        self._theta = theta
        self._moved = self._size = 0.0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        assert self._theta is not None
        with TensorReader(self._theta) as theta:
            for name, inner in self._tensors:
                outer = theta.get(name)
                delta = outer - inner
                self._moved += float(delta.double().square().sum())
                self._size += float(outer.double().square().sum())
                yield name, delta

    def drain(self) -> None:
        """Gathers what is left, so that no other rank waits for this one."""
        for _ in self._tensors:
            pass

    @property
    def norm(self) -> float:
        """L2 norm of the delta so far."""
        return math.sqrt(self._moved)

    @property
    def drift(self) -> float:
        """||theta_inner - theta_outer|| / ||theta_outer||."""
        return math.sqrt(self._moved / self._size) if self._size else 0.0


def _require_told(what: str, value: float) -> None:
    if not abs(value) <= LARGEST:  # nan compares as false
        raise NotFiniteError(f"its {what} is {value:g}, beyond {LARGEST:g}")


def _cannot_write(final: Path, why: Exception) -> CheckpointError:
    return CheckpointError(
        f"cannot write {final}: {why}. The checkpoints before it are intact: make room, then go on "
        f"with resume={final.parent.parent}"
    )


def _write(entry: Entry) -> None:
    row = {
        "offer": entry.offer.model_dump(mode="json"),
        "step": entry.step,
        "tokens_total": entry.tokens_total,
        "verdict": None if entry.verdict is None else entry.verdict.model_dump(mode="json"),
    }
    write_durably(entry.folder / "entry.json", json.dumps(row, indent=1).encode())


def _read(folder: Path) -> Entry:
    """Raises CheckpointError when the entry is not what `_write` wrote."""
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
