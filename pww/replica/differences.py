"""How far a phase moved: theta_outer - theta_inner, tensor by tensor, measured as it goes by.

It is taken where the tensor lives: theta_outer goes there from its file in pieces, and beside a
tensor and its difference only pieces are in memory.
"""

import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch

from pww.errors import NotFiniteError, PayloadError
from pww.trainer.api import Trainer
from pww.transport.fingerprint import PIECE
from pww.transport.tensorfile import TensorReader

LARGEST = 1e30
"""Largest loss, norm or drift that a message can tell; beyond it a phase has diverged."""


class Differences:
    """theta_outer - theta_inner, tensor by tensor; every rank takes part in each gather."""

    def __init__(self, trainer: Trainer, theta: Path | None) -> None:
        self._tensors = self._gathered(trainer.tensors())
        self._theta = theta
        self._no_room = ""
        self._moved = self._size = 0.0

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        assert self._theta is not None
        buffer = torch.empty(PIECE)
        with TensorReader(self._theta) as theta:
            for name, inner in self._tensors:
                if tuple(inner.shape) != theta.shape(name):
                    raise PayloadError(
                        f"tensor {name} of theta has shape {theta.shape(name)}, the trainer's is "
                        f"{tuple(inner.shape)}: it is another model's"
                    )
                delta = torch.empty_like(inner, memory_format=torch.contiguous_format)
                flat, start = delta.view(-1), 0
                for piece in torch.split(inner.reshape(-1), PIECE):
                    read = buffer[: piece.numel()]
                    theta.read(name, read, start=start)
                    outer = read.to(inner.device)
                    here = torch.sub(outer, piece, out=flat[start : start + piece.numel()])
                    self._moved += float(here.double().square().sum())
                    self._size += float(outer.double().square().sum())
                    start += piece.numel()
                yield name, delta

    def drain(self) -> None:
        """Gathers what is left, so that no other rank waits for this one.

        Raises:
            torch.OutOfMemoryError: there was no room for one, now or before: the others wait in it,
                and only the end of this process ends that.
        """
        deque(self._tensors, maxlen=0)  # a loop would keep one while the next is gathered
        if self._no_room:
            raise torch.OutOfMemoryError(self._no_room)

    def _gathered(
        self, tensors: Iterator[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            yield from tensors
        except torch.OutOfMemoryError as why:
            self._no_room = str(why)
            raise

    @property
    def norm(self) -> float:
        """L2 norm of the delta so far."""
        return math.sqrt(self._moved)

    @property
    def drift(self) -> float:
        """||theta_inner - theta_outer|| / ||theta_outer||."""
        return math.sqrt(self._moved / self._size) if self._size else 0.0


def require_told(what: str, value: float) -> None:
    """Lets a number pass that a message can carry.

    Raises:
        NotFiniteError: it is nan, or beyond `LARGEST`.
    """
    if not abs(value) <= LARGEST:  # nan compares as false
        raise NotFiniteError(f"its {what} is {value:g}, beyond {LARGEST:g}")
