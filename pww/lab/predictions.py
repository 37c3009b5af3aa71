"""What was predicted before its run: one row of a study's `log.jsonl`, named by its own content.

A prediction's id is a digest of all that it says. A result lists the ids that were in the log when
it was written (`sealed`), so a claim that is edited afterwards, added afterwards or taken away is
found out: the id that the result knows is no longer that of any row.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from pww.errors import LabError
from pww.log import JsonLines, read_json_lines

LOG_FILE = "log.jsonl"
Quantity: TypeAlias = Literal["loss", "loss_difference", "loss_ratio", "diverged"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
NOTHING = "none"
"""What a quantity of one cell alone is against."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A claim about cells of one study, and the interval that its number is said to lie in.

    `loss`, and `diverged` (the share of the seeds), are of `cell` alone; `loss_difference` is
    cell - against and `loss_ratio` cell / against, both seed by seed. `low` and `high` may be
    infinite: a run that diverges has the loss infinity.
    """

    claim: str
    cell: str
    against: str
    quantity: Quantity
    low: float
    high: float
    at: str  # when it was written, for people

    def __post_init__(self) -> None:
        """Refuses what cannot be judged.

        Raises:
            LabError: the reason.
        """
        alone = self.quantity in ("loss", "diverged")
        if not self.claim.strip():
            raise LabError("claim is empty: say in a sentence what you expect, and why")
        if math.isnan(self.low) or math.isnan(self.high) or self.low > self.high:
            raise LabError(
                f"low={self.low:g} high={self.high:g}: an interval has low <= high (-inf and inf "
                "leave a side open)"
            )
        if math.isinf(self.low) and math.isinf(self.high) and self.low != self.high:
            raise LabError("low=-inf high=inf: nothing could refute that; give a side")
        if alone and self.against != NOTHING:
            raise LabError(
                f"quantity={self.quantity} is of one cell: leave against={self.against} out, or "
                "take loss_difference or loss_ratio"
            )
        if not alone and self.against == NOTHING:
            raise LabError(f"quantity={self.quantity} compares two cells: give against=CELL")
        if self.cell == self.against:
            raise LabError(f"cell and against are both {self.cell}: compare two cells")

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells that it speaks of."""
        return (self.cell,) if self.against == NOTHING else (self.cell, self.against)

    @property
    def id(self) -> str:
        """A digest of all that it says."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def append(study: Path, prediction: Prediction) -> None:
    """Adds the prediction to the log of the study in that folder, durably."""
    log = JsonLines(study / LOG_FILE)
    try:
        log.write({"kind": "prediction", "id": prediction.id, **asdict(prediction)}, durable=True)
    finally:
        log.close()


def written(study: Path) -> tuple[list[Prediction], list[str]]:
    """The predictions in the log, in its order, and a sentence for each row that is not one."""
    found: list[Prediction] = []
    faults: list[str] = []
    for row in read_json_lines(study / LOG_FILE):
        if row.get("kind") != "prediction":
            continue
        try:
            prediction = _read(row)
        except (LabError, KeyError, TypeError, ValueError) as fault:
            said = fault if isinstance(fault, LabError) else f"{type(fault).__name__}: {fault}"
            faults.append(f"{LOG_FILE}: prediction {row.get('id')} cannot be read ({said})")
            continue
        if prediction.id != row.get("id"):
            faults.append(
                f"{LOG_FILE}: prediction {row.get('id')} was edited: what it says now has the id "
                f"{prediction.id}; put its row back as it was"
            )
        elif prediction.id not in {one.id for one in found}:
            found.append(prediction)
    return found, faults


def _read(row: dict[str, object]) -> Prediction:
    quantity = row["quantity"]
    if quantity not in QUANTITIES:
        raise LabError(f"quantity={quantity} is one of {', '.join(QUANTITIES)}")
    return Prediction(
        claim=str(row["claim"]),
        cell=str(row["cell"]),
        against=str(row["against"]),
        quantity=quantity,
        low=float(str(row["low"])),
        high=float(str(row["high"])),
        at=str(row["at"]),
    )
