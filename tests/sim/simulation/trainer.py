"""The inner loop as a closed form: a step pulls theta to its windows' mean; every draw is noted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from simulation.threads import Event

from pww.errors import CheckpointError
from pww.replica.plan import PhasePlan
from pww.trainer.api import EvalResult, PhaseResult
from pww.transport.tensorfile import TensorReader, state_hash, tensors
from pww.wire import Lease

SHAPES: dict[str, tuple[int, ...]] = {"b": (), "w": (2, 2)}
TOKENS = 4
"""Targets of one window."""
RATE = np.float32(0.1)

State = dict[str, np.ndarray]


def start_of(seed: int) -> State:
    """theta(0) of a site that is asked for it."""
    w = np.arange(4, dtype=np.float32).reshape(2, 2) + np.float32(seed % 7)
    return {"b": np.array(1.0, np.float32), "w": w}


def target(window: int) -> np.ndarray:
    """What a window pulls theta to."""
    ks = np.array([[3, 5], [7, 11]])
    return ((window * ks) % 97 / 97.0).astype(np.float32)


def inner_step(theta: State, windows: Sequence[int]) -> State:
    """One step in fp32."""
    goal = np.mean([target(w) for w in windows], axis=0, dtype=np.float32)
    return {
        "b": theta["b"] - (theta["b"] - goal.mean(dtype=np.float32)) * RATE,
        "w": theta["w"] - (theta["w"] - goal) * RATE,
    }


def read_theta(path: Path) -> State:
    """A tensor file as arrays."""
    with TensorReader(path) as reader:
        return {name: value.numpy().copy() for name, value in tensors(reader)}


@dataclass(frozen=True)
class Plan(PhasePlan):
    """A plan that tells the trainer which lease its windows are of."""

    trainer: "Trainer | None" = None

    def windows(self, lease: Lease) -> list[int]:
        assert self.trainer is not None
        self.trainer.lease = lease
        return super().windows(lease)


class Trainer:
    """`pww.trainer.api.Trainer` of one process."""

    def __init__(self, site: Any, *, batch: int, step_s: float, seed: int) -> None:
        self._site, self._batch, self._step_s = site, batch, step_s
        self.step = 0
        self.theta = start_of(seed)
        self.loaded = (-1, "")  # round and hash of what is trained from
        self.began: int | str = -1  # what the last phase began from: a round, or after a delta
        self.here: int | str = -1  # and what the weights are now
        self.lease: Lease | None = None
        self._never = Event()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return SHAPES

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in self.theta.items():
            yield name, torch.from_numpy(np.array(value, copy=True))

    def load(self, theta: Path) -> None:
        self.theta = read_theta(theta)
        if not theta.stem.startswith("theta-"):
            return  # its own weights, moved: `put` says of which delta
        self.here = int(theta.stem.rpartition("-")[2])
        self.loaded = (self.here, state_hash(theta))

    def run(
        self, windows: Sequence[int], *, progress: float, progress_end: float, on_step: Any,
        stop: Any,
    ) -> PhaseResult:  # fmt: skip
        assert self.lease is not None
        clock, lease = self._site.clock, self.lease
        start_s = clock.monotonic()
        self.began = self.here
        if isinstance(self.began, int):
            self._site.trains_from(*self.loaded)
        batches = [windows[i : i + self._batch] for i in range(0, len(windows), self._batch)]
        drawn: list[int] = []
        done = 0
        while done < len(batches) and not stop.agreed():
            assert 0.0 <= progress <= progress_end <= 1.0 + 1e-9, (progress, progress_end)
            self._site.draws(lease, len(drawn), batches[done])
            self.theta = inner_step(self.theta, batches[done])
            drawn += batches[done]
            done += 1
            self.step += 1
            clock.wait(self._never, self._step_s)
        return PhaseResult(
            steps=done, tokens=len(drawn) * TOKENS, loss=1.0, drawn=tuple(sorted(drawn)),
            seconds=max(clock.monotonic() - start_s, 1e-6), stopped=done < len(batches),
        )  # fmt: skip

    def expect(self, windows: Sequence[int]) -> None:
        pass

    def evaluate(self) -> EvalResult:
        return EvalResult(loss=1.0, tokens=1)

    def save_inner(self, folder: Path) -> None:
        self.copy_inner().write(folder)

    def copy_inner(self) -> "StepCopy":
        return StepCopy(self.step)

    def load_inner(self, folder: Path) -> None:
        self.step = int((folder / "step").read_text())

    def reset_inner(self) -> None:
        raise AssertionError("every phase is finite")

    def close(self) -> None:
        pass


@dataclass
class StepCopy:
    """An inner state that is a number."""

    step: int

    def write(self, folder: Path) -> None:
        try:
            folder.mkdir()
            with (folder / "step").open("w") as file:
                file.write(str(self.step))
        except OSError as why:
            raise CheckpointError(f"{folder}: {why}") from why
