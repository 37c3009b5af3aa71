"""All ranks of an allocation as one actor: `trainer.ranks.Ranks`, over several replicas.

A replica's ranks are a world of their own, so that nothing inside the trainer knows of others;
torch has no object collectives outside that world. What is told across it is JSON, over a circle.
"""

import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pww import errors
from pww.errors import PwwError, TrainerError
from pww.replica.circle import Circle
from pww.trainer.ranks import Ranks

T = TypeVar("T")
PLAIN = ("Stopped", "CheckpointError", "DataError", "LeaseError", "PayloadError", "StateError")
"""Faults that are built from their text alone; others arrive as a TrainerError with that text."""


class Everyone(Ranks):
    """`share` and `local` want values that JSON can say; `gather` is not there."""

    def __init__(self, circle: Circle, *, asked: threading.Event) -> None:
        """`asked` is also that of the replica: a signal to this process is for both."""
        self.rank, self.world = circle.place, circle.size
        self._circle, self._group, self.asked = circle, None, asked

    def gather(self, value: T) -> list[T]:
        """Not across replicas."""
        raise NotImplementedError("replicas tell each other tensors: use a Circle")

    def most(self, mine: int) -> int:
        """Collective: the highest value of any rank."""
        return max(int(one) for (one,) in self._circle.numbers(float(mine)))

    def agree_on_fault(self, fault: PwwError | None) -> None:
        """Collective: raises on every rank the first rank's fault, if any rank has one."""
        faulty = [bool(one) for (one,) in self._circle.numbers(float(fault is not None))]
        if not any(faulty):
            return
        first = faulty.index(True)
        told = self._tell(json.dumps(_told(fault)) if self.rank == first else "", source=first)
        raise fault if self.rank == first and fault is not None else _fault(json.loads(told))

    def close(self) -> None:
        """Nothing of its own: the replica's ranks are closed by themselves."""

    def _broadcast(self, outcome: Any) -> Any:
        """Collective: rank 0's outcome on every rank; rank 0 keeps its own object."""
        text = ""
        if self.rank == 0 and outcome is not None:
            value, fault = outcome
            if fault is not None and not isinstance(fault, PwwError):
                fault = TrainerError(f"rank 0 failed: {type(fault).__name__}: {fault}")
            try:
                text = json.dumps({"value": value, "fault": _told(fault)})
            except TypeError as why:
                fault = TrainerError(f"rank 0 could not share its result: {why}")
                text, outcome = json.dumps({"value": None, "fault": _told(fault)}), (None, fault)
        told = self._tell(text, source=0)
        if self.rank == 0 or not told:
            return outcome
        row = json.loads(told)
        return row["value"], None if row["fault"] is None else _fault(row["fault"])

    def _tell(self, text: str, *, source: int) -> str:
        """Collective: what `source` says, on every rank."""
        data = text.encode()
        size = int(self._circle.numbers(float(len(data)))[source][0])
        told = torch.zeros(size, dtype=torch.uint8)
        if self.rank == source and size:
            told = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._circle.broadcast(told, source=source)
        return bytes(told.tolist()).decode()


def _told(fault: BaseException | None) -> dict[str, str] | None:
    return None if fault is None else {"kind": type(fault).__name__, "text": str(fault)}


def _fault(told: dict[str, str]) -> PwwError:
    """The same kind where its text is all there is to it, so that it ends every rank alike."""
    make: Callable[[str], PwwError] = TrainerError
    if told["kind"] in PLAIN:
        make = getattr(errors, told["kind"])
    return make(told["text"])
