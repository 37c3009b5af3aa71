"""The outbox: before a delta is sent, everything it stands for is durable in one folder of the run.

    checkpoints/phase-000003/    offer, payload, next residual, inner state: see `replica.entry`

A folder is complete or absent: it is written as `.part`, fsynced and renamed. What survives a
crash: the newest complete phase, whose delta is offered again on resume (a delta id counts once),
and the one before it.

The residual in force is the one in the folder of the last merged delta, which is therefore kept
however many rejected phases follow. So the verdict, noted in one write, is what adopts a residual
or leaves the one before.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial as partially
from pathlib import Path
from uuid import uuid4

from pww.codec import Codec
from pww.errors import CheckpointError, PwwError
from pww.folder import sync_folder, sync_tree
from pww.log import JsonLines
from pww.replica import entry as entries
from pww.replica.differences import Differences
from pww.replica.encoding import Encoded, encode
from pww.replica.entry import NOTHING, RESIDUAL, Entry
from pww.replica.measured import phase_metrics
from pww.replica.saving import Saving
from pww.trainer.api import EvalResult, InnerCopy, PhaseResult, Trainer
from pww.trainer.ranks import Ranks
from pww.transport.exchange import Theta
from pww.wire import Gauges, Lease, Leased, Offer, Verdict

__all__ = ["NOTHING", "Entry", "Outbox"]
log = logging.getLogger(__name__)


class Outbox:
    """The phases of one replica on disk. Every method that takes the trainer is collective."""

    def __init__(
        self, run: Path, *, ranks: Ranks, codec: Codec, keep: int, feedback: bool = False
    ) -> None:
        """`feedback`: what the codec loses is kept for the next delta."""
        self.run, self._folder = run, run / "checkpoints"
        self._ranks, self._codec, self._keep = ranks, codec, keep
        self._feedback = feedback
        self._draws: JsonLines | None = None
        self._beside: Ranks | None = None
        self._saving: Saving | None = None
        self._forgotten = False  # this folder's last merged delta is not the central's
        self._outdated = ""  # the delta that was pending then: merged or not, others followed it
        self.last: Entry | None = None
        self.residual: Entry | None = None  # the merged phase whose residual is in force; rank 0
        if ranks.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in self._folder.glob("*.part"):
                shutil.rmtree(part)
        self.last = ranks.local(self._open)
        if ranks.rank == 0:
            self._draws = JsonLines(run / "draws.jsonl")

    @property
    def pending(self) -> Entry | None:
        """The entry whose verdict is not known yet."""
        if self._saving is not None and self._saving.failed:
            return None
        return self.last if self.last is not None and self.last.verdict is None else None

    @property
    def merged(self) -> str:
        """Id of this replica's last merged delta, "" if none: the next delta's `prev`.

        "" too from `rejoin` on until the next merge, if the central knows another one: then the
        next delta goes out without a residual, which the central takes from a process of which it
        merged nothing yet.
        """
        if self.last is None or self._forgotten:
            return ""
        verdict = self.last.verdict
        merged = verdict is not None and verdict.outcome == "merged"
        return self.last.offer.delta if merged else self.last.offer.prev

    def encode_with(self, codec: Codec, *, feedback: bool) -> None:
        """Another codec from the next delta on; a residual in force stays: it is plain fp32."""
        self._codec, self._feedback = codec, feedback

    def rejoin(self, last_merged: str) -> Entry | None:
        """Compares with the central what was merged last; call it once, at the start. Collective.

        A folder that came back from an old copy, or lost its newest phases, has a residual that
        does not hold any more: it is dropped, and its phase returned (on every rank).

        Raises:
            CheckpointError: it could not be dropped.
        """
        pending = self.pending
        if last_merged == self.merged or (pending and last_merged == pending.offer.delta):
            return None
        self._forgotten = True
        self._outdated = "" if pending is None else pending.offer.delta
        return self._ranks.local(self._drop)

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
        gauges: Gauges = Gauges(),
        beside: bool = False,
    ) -> Entry:
        """Makes one finished phase durable and returns it; collective.

        With `beside` it is copied only, for a thread that makes it durable while the trainer goes
        on: nothing may be sent before `wait` or `saved` has returned.

        Raises:
            CheckpointError: it could not be written (disk full, say), or the device had no room to
                encode it; the one before it is intact.
            PayloadError: theta on the disk is damaged, or not the trainer's; likewise.
            torch.OutOfMemoryError: this rank had no room for a gather, in which the others wait.
        """
        number = 0 if self.last is None else int(self.last.folder.name.removeprefix("phase-")) + 1
        final = self._folder / f"phase-{number:06d}"
        part = final.with_name(final.name + ".part")
        fault: PwwError | None = None
        encoded = Encoded()
        differences = Differences(trainer, theta.path if self._ranks.rank == 0 else None)
        if self._ranks.rank == 0:
            try:
                encoded = encode(
                    part, final, differences, trainer.shapes(), self._codec, loss=result.loss,
                    seed=f"{lease.replica} {theta.round} {number}", feedback=self._feedback,
                    before=None if self.residual is None else self.residual.residual,
                )  # fmt: skip
            except PwwError as why:
                fault = why
        differences.drain()  # all ranks gather every tensor, whatever happened on rank 0
        if fault is not None:
            self._discard(part)
        self._ranks.agree_on_fault(fault)
        copy: InnerCopy | None = None
        try:
            if beside:
                copy = trainer.copy_inner()
            else:
                trainer.save_inner(part / "inner")
        except CheckpointError as why:
            self._discard(part)
            raise entries.cannot_write(final, why) from why

        def finish() -> Entry:
            metrics = phase_metrics(
                result, held_out, gauges, drift=encoded.drift, norm=encoded.norm,
                residual_norm=encoded.residual_norm,
            )  # fmt: skip
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
                finite=encoded.finite,
                payload=encoded.payload,
                metrics=metrics,
            )
            total = result.tokens + (0 if self.last is None else self.last.tokens_total)
            entry = Entry(final, offer, trainer.step, total, None)
            if not beside:
                self._publish(part, entry, result.drawn)
            return entry

        entry = self._ranks.local(finish)
        if copy is not None:
            self._beside = self._beside or self._ranks.beside()
            publish = partially(self._publish, part, entry, result.drawn)
            self._saving = Saving(copy, part, final, ranks=self._beside, publish=publish)
        self.last = entry
        return entry

    def saved(self) -> None:
        """Returns when what is written beside a phase is durable, on every rank. Collective.

        Raises:
            CheckpointError: it never will be; the phase before it is intact.
        """
        if self._saving is not None:
            self._ranks.local(self.wait)

    def wait(self) -> None:
        """The same, of rank 0 alone."""
        if self._saving is not None:
            self._saving.wait()

    def settle(self, verdict: Verdict) -> None:
        """Notes the verdict durably; the payload is no longer needed. Collective.

        On `merged` the residual of the phase is in force from here on, else the one before stays.

        Raises:
            CheckpointError: it could not be noted; a resumed run offers the delta again, and its id
                counts once.
        """
        assert self.last is not None
        entry = replace(self.last, verdict=verdict)
        merged = verdict.outcome == "merged"

        def note() -> None:
            past = self.residual if merged else entry
            try:
                entries.write(entry)
                if merged:
                    self.residual = entry if entry.residual.exists() else None
                entry.payload.unlink(missing_ok=True)
                if past is not None:
                    past.residual.unlink(missing_ok=True)
            except OSError as why:
                raise entries.cannot_write(entry.folder, why) from why

        self._ranks.local(note)
        if self._saving is not None:
            self._saving.ended()
        self.last, self._saving = entry, None
        if merged and verdict.delta != self._outdated:
            self._forgotten = False

    def close(self) -> None:
        """Waits for what is being written, then lets go; safe to call twice."""
        if self._saving is not None:
            self._saving.ended()
        self._beside = None
        if self._draws is not None:
            self._draws.close()

    def _publish(self, part: Path, entry: Entry, drawn: Sequence[int]) -> None:
        """Gives a phase whose files are all in `part` its name."""
        try:
            assert self._draws is not None
            offer = entry.offer
            self._draws.write(
                {"delta": offer.delta, "lease": offer.spans[0].lease, "windows": list(drawn)},
                durable=True,
            )
            entries.write(replace(entry, folder=part))
            sync_tree(part)
            part.rename(entry.folder)
            sync_folder(self._folder)
        except OSError as why:
            self._discard(part)
            raise entries.cannot_write(entry.folder, why) from why
        self._collect()

    def _phases(self) -> list[Path]:
        """The folders of complete phases, oldest first."""
        return sorted(self._folder.glob("phase-??????"))

    def _open(self) -> Entry | None:
        """The newest phase; notes on the way whose residual is in force."""
        folders = self._phases()
        self.last = entries.read(folders[-1]) if folders else None
        self.residual = self._in_force()
        return self.last

    def _in_force(self) -> Entry | None:
        """The phase whose residual is in force, found by its tag: the last merged delta."""
        for folder in reversed(self._phases()):
            if (folder / RESIDUAL).exists():
                entry = entries.read(folder)
                if entry.offer.delta == self.merged:
                    return entry
        return None

    def _drop(self) -> Entry | None:
        """Removes every residual, so that a drop is told once; the phase of the one in force."""
        dropped, self.residual = self.residual, None
        for folder in self._phases():
            try:
                (folder / RESIDUAL).unlink(missing_ok=True)
            except OSError as why:
                raise entries.cannot_write(folder, why) from why
        if dropped is not None:
            log.warning(
                "the residual after delta %s is dropped (norm %.3g): the central merged another "
                "delta of this replica last; this folder is older than that",
                dropped.offer.delta, dropped.offer.metrics.residual_norm,
            )  # fmt: skip
        return dropped

    def _collect(self) -> None:
        """Removes the oldest phases, but for the one whose residual holds."""
        for old in self._phases()[: -self._keep]:
            if self.residual is None or old != self.residual.folder:
                entries.discard(old)

    def _discard(self, part: Path) -> None:
        if self._ranks.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
