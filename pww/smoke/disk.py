"""Does what rank 0 saves in the run's folder come back, to the bit, on every rank?

A folder that not all nodes share, or a full disk, would otherwise be noticed at the first
checkpoint of a run.
"""

from pathlib import Path

import torch

from pww.errors import PwwError
from pww.replica.circle import Circle
from pww.smoke.book import Check
from pww.smoke.tell import complaints, gathered
from pww.transport.payload import write_theta
from pww.transport.tensorfile import TensorReader

SHAPE = (1031, 257)
"""About a megabyte; neither is a power of two."""
NAME = "known"


def check(run: Path, across: Circle) -> Check:
    """Collective: one tensor, written by rank 0 as theta is, read by all."""
    path = run / "known.safetensors"
    saved = values()
    fault = ""
    if across.place == 0:
        try:
            write_theta(path, [(NAME, saved)], {NAME: SHAPE})
        except (OSError, PwwError) as why:
            fault = f"rank 0 cannot write {path}: {why}; make room, or give run.root=…"
    if fault := gathered(across, fault)[0]:
        return Check("checkpoint", "wrong", fault)
    wrong = complaints(across, _wrong(path, saved))
    if across.place == 0:
        path.unlink(missing_ok=True)
    if wrong:
        return Check("checkpoint", "wrong", wrong)
    return Check(
        "checkpoint", "right", f"{saved.nbytes / 1e6:.1f} MB saved, and read by every rank"
    )


def values() -> torch.Tensor:
    """Every bit pattern's exponent comes up, zeros of both signs too."""
    count = torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32)
    return (torch.exp2(count % 250 - 125) * (count % 3 - 1)).view(SHAPE)


def _wrong(path: Path, saved: torch.Tensor) -> str:
    try:
        with TensorReader(path) as reader:
            found = reader.get(NAME)
    except (OSError, PwwError) as why:
        return f"cannot read {path}: {why}; all nodes have to share run.root"
    if found.shape != saved.shape or not torch.equal(
        found.view(torch.int32), saved.view(torch.int32)
    ):
        return f"reads other values from {path} than rank 0 wrote"
    return ""
