"""The inner state of a replica in a folder: optimiser, step and RNG, by all ranks at once.

    inner.json     format, step, ranks, whether the optimiser has no state at all
    *.distcp       each rank's shards (torch.distributed.checkpoint), any number of ranks reads them
    .metadata      what is where

Hyper-parameters are not in it: the configuration is their only home. RNG states are the CPU's (no
model here draws on its device), and are restored only by as many ranks as wrote them.
"""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.state_dict_loader as loader
import torch.distributed.checkpoint.state_dict_saver as saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

from pww.errors import CheckpointError, PwwError
from pww.trainer.ranks import Ranks

FILE = "inner.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Inner:
    """What inner.json says."""

    format: int
    step: int
    ranks: int
    fresh: bool  # True: no optimiser state existed, so none is stored


def save(folder: Path, optimizers: Any, *, step: int, ranks: Ranks) -> None:
    """Collective: writes the state into `folder`, which is made. Changes nothing, not even lazily.

    Raises:
        CheckpointError: on every rank; the folder may then hold a part, and no inner.json.
    """
    fresh = is_fresh(optimizers)
    fault: PwwError | None = _prepared(folder) if ranks.rank == 0 else None
    ranks.agree_on_fault(fault)
    writer = _Writer(folder)
    state = stored(optimizers, ranks.rank)
    try:
        saver.save(state, storage_writer=writer, process_group=ranks.group)
    except CheckpointException as why:
        fault = unwritable(folder, reason(why))
    disk = writer.disk.fault
    # First of all the rank whose disk failed: torch tells the others only that something did.
    ranks.agree_on_fault(None if disk is None else unwritable(folder, disk))
    ranks.agree_on_fault(fault)
    if ranks.rank == 0:
        try:
            inner = Inner(FORMAT, step, ranks.world, fresh)
            (folder / FILE).write_text(json.dumps(asdict(inner)) + "\n", encoding="utf-8")
        except OSError as why:
            fault = unwritable(folder, why)
    ranks.agree_on_fault(fault)


def load(folder: Path, optimizers: Any, *, ranks: Ranks) -> int:
    """Collective: restores what `save` wrote, on any number of ranks; returns the step.

    Raises:
        CheckpointError: on every rank; the optimiser is then as after `reset`.
    """
    inner, fault = None, None
    if ranks.rank == 0:
        try:
            inner = _read(folder)
        except CheckpointError as wrong:
            fault = wrong
    ranks.agree_on_fault(fault)
    inner = ranks.share(lambda: inner)
    assert inner is not None
    reset(optimizers)
    state = _beside(optimizers) if inner.fresh else _tensors(optimizers)
    same = inner.ranks == ranks.world
    rng = _rng(ranks.rank) if same else {}
    try:
        loader.load({**state, **rng}, checkpoint_id=folder, process_group=ranks.group)
    except CheckpointException as why:
        fault = CheckpointError(
            f"{folder} does not hold this model's inner state ({reason(why)}); resume from an "
            "older checkpoint, or with the model that wrote it"
        )
    if fault is not None:
        reset(optimizers)
    ranks.agree_on_fault(fault)
    for random in rng.values():
        torch.set_rng_state(random)
    return inner.step


def reset(optimizers: Any) -> None:
    """Forgets all moments and gradients; the next step starts the averages anew."""
    for optimizer in optimizers:
        optimizer.state.clear()
    optimizers.zero_grad(set_to_none=True)


def is_fresh(optimizers: Any) -> bool:
    """Whether there is no optimiser state: no step since the start or the last `reset`, or a kind
    that keeps none, such as SGD without momentum.
    """
    return not any(optimizer.state for optimizer in optimizers)


def stored(optimizers: Any, rank: int) -> dict[str, Any]:
    """What is saved by a rank: the live tensors, if there are any, and the state of its RNG."""
    fresh = is_fresh(optimizers)
    return {**_rng(rank), **(_beside(optimizers) if fresh else _tensors(optimizers))}


def _beside(optimizers: Any) -> dict[str, Any]:
    """What goes with an optimiser and is state without a step of it: a ResNet's statistics."""
    beside = getattr(optimizers, "beside", None)
    return {} if beside is None else dict(beside())


def _tensors(optimizers: Any) -> dict[str, Any]:
    """The live state tensors by parameter name; made first (all zero) if there are none.

    Torch makes them by a step of rate 0, which counts as a step in Adam's bias correction: that is
    why `save` never comes here with a fresh optimiser. A load overwrites the count.
    """
    flat: dict[str, Any] = optimizers.state_dict()
    return {name: value for name, value in flat.items() if name.startswith("state.")}


def _rng(rank: int) -> dict[str, torch.Tensor]:
    return {f"rng.cpu.{rank}": torch.get_rng_state()}


def _read(folder: Path) -> Inner:
    path = folder / FILE
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        inner = Inner(**row)
    except OSError as why:
        raise CheckpointError(
            f"no inner state in {folder} ({why.strerror}: {FILE}); resume from another checkpoint"
        ) from why
    except (ValueError, TypeError) as why:
        raise CheckpointError(f"{path} is damaged ({why}); resume from another checkpoint") from why
    if inner.format != FORMAT:
        raise CheckpointError(
            f"{path} has format {inner.format}, this version reads {FORMAT}: resume with the "
            "version that wrote it"
        )
    if not (folder / ".metadata").is_file():
        raise CheckpointError(
            f"no inner state in {folder} (.metadata is missing); resume from another checkpoint"
        )
    return inner


def _prepared(folder: Path) -> CheckpointError | None:
    """Makes the folder; what is wrong with it, if anything."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = (folder / FILE).exists() or (folder / ".metadata").exists()
    except OSError as why:
        return unwritable(folder, why)
    if taken:
        return CheckpointError(f"{folder} holds an inner state already: give a new folder")
    return None


def unwritable(folder: Path, why: object) -> CheckpointError:
    """What is said when the disk refuses."""
    return CheckpointError(
        f"cannot write the inner state to {folder}: {why}; free some space there or move run.root"
    )


def reason(fault: CheckpointException) -> str:
    """The first rank's own fault, without torch's tracebacks."""
    for cause, _ in fault.failures.values():
        return str(cause) or type(cause).__name__
    return "no reason given"


class _Writer(FileSystemWriter):
    """Torch's writer on a disk that remembers why it refused; the caller fsyncs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sync_files=False, overwrite=False)
        self.disk = Disk()
        self.fs = self.disk


class Disk(FileSystem):
    """Keeps the `OSError` of a write, of which torch's zip writer reports only `unexpected pos`."""

    def __init__(self) -> None:
        self.fault: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A buffered stream over `path`."""
        assert mode == "wb", "this disk is for writing"
        try:
            with io.BufferedWriter(_Raw(path, self)) as stream:
                yield stream
        except OSError as fault:
            self.fault = self.fault or fault
            raise


class _Raw(io.FileIO):
    """An unbuffered file whose failed writes are noted."""

    def __init__(self, path: str | PathLike[str], disk: Disk) -> None:
        super().__init__(path, "wb")
        self._disk = disk

    def write(self, data: Any, /) -> int:
        """Like `FileIO.write`."""
        try:
            return super().write(data)
        except OSError as fault:
            self._disk.fault = fault
            raise
