"""What a replay needs, kept on disk when `central.keep_deltas` asks for it: theta(0), every merge.

    kept/theta0.safetensors           theta(0), bit for bit
    kept/round-000003/round.json      what was merged, how, and the state hash that came out
    kept/round-000003/<delta>.payload

Files are hard links where the disk has them, so keeping costs no time. A round is complete before
the ledger commits it; one that the ledger does not know is what a crash left, and is replaced.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pww.central.screening import StagedPayload
from pww.codec import Codec
from pww.config import schema
from pww.errors import StateError
from pww.folder import sync_folder, write_durably
from pww.wire import Count, Digest, Message, PayloadInfo

FOLDER = "kept"


class KeptDelta(Message):
    """A merged delta: all that its weight and place in the merge follow from."""

    delta: str
    replica: str
    payload: PayloadInfo
    tokens: Count
    staleness: Count
    partial: bool


class KeptRound(Message):
    """`round.json`."""

    round: Count
    state_hash: Digest
    diloco: schema.Diloco
    down: str = ""  # the down codec's name, "" for none
    deltas: tuple[KeptDelta, ...]


class Kept:
    """The folder `kept` of a central's state folder."""

    def __init__(self, state: Path) -> None:
        self.folder = state / FOLDER

    @property
    def theta0(self) -> Path:
        """theta(0)."""
        return self.folder / "theta0.safetensors"

    def keep_theta0(self, theta: Path) -> None:
        """theta(0) is durable here when this returns.

        Raises:
            OSError: it could not be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.theta0.unlink(missing_ok=True)
        _link(theta, self.theta0)
        sync_folder(self.folder)

    def keep_round(
        self,
        number: int,
        deltas: Sequence[StagedPayload],
        *,
        diloco: schema.Diloco,
        state_hash: str,
        down: Codec | None = None,
    ) -> None:
        """What round `number` merged is durable here when this returns.

        Raises:
            OSError: it could not be written; nothing of it is left.
        """
        final = self._round(number)
        part = final.with_name(final.name + ".part")
        for left in (part, final):
            shutil.rmtree(left, ignore_errors=True)
        rows = tuple(
            KeptDelta(
                delta=d.delta, replica=d.replica, payload=d.info, tokens=d.tokens,
                staleness=d.staleness, partial=d.partial,
            )
            for d in deltas
        )  # fmt: skip
        record = KeptRound(
            round=number, state_hash=state_hash, diloco=diloco, deltas=rows,
            down="" if down is None else down.name,
        )  # fmt: skip
        try:
            part.mkdir(parents=True)
            for delta in deltas:
                _link(delta.path, part / f"{delta.delta}.payload")
            write_durably(part / "round.json", record.model_dump_json(indent=1).encode())
            part.rename(final)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def round(self, number: int) -> tuple[KeptRound, tuple[StagedPayload, ...]]:
        """What round `number` merged, in the merge's order.

        Raises:
            StateError: it was not kept, or is damaged.
        """
        folder = self._round(number)
        try:
            record = KeptRound.model_validate_json((folder / "round.json").read_text())
        except FileNotFoundError:
            raise StateError(
                f"round {number} was merged without central.keep_deltas=true, so there is nothing "
                f"in {folder} to replay it from: set it at a run's start"
            ) from None
        except (OSError, ValidationError) as why:
            told = why if isinstance(why, OSError) else "round.json is damaged"
            raise StateError(
                f"{folder} cannot be read ({told}): restore the folder {self.folder} from a copy"
            ) from why
        return record, tuple(
            StagedPayload(
                delta=d.delta, prev="", replica=d.replica, path=folder / f"{d.delta}.payload",
                info=d.payload, tokens=d.tokens, staleness=d.staleness, partial=d.partial,
            )
            for d in record.deltas
        )  # fmt: skip

    def _round(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}"


def _link(source: Path, target: Path) -> None:
    """The same bytes under another name; a durable copy where the disk knows no links."""
    try:
        os.link(source, target)
    except OSError:
        with source.open("rb") as reader, target.open("wb") as writer:
            shutil.copyfileobj(reader, writer)
            writer.flush()
            os.fsync(writer.fileno())
