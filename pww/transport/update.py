"""Theta of the next round from theta of this one and the update that the central sent.

One subtraction in fp32 on the CPU, of what the payload decodes to: the central did the same with
the same bits. Source: the lines on the down codec in `pww.central.downcast`.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from pww.errors import PayloadError
from pww.transport.fingerprint import PIECE
from pww.transport.payload import PayloadReader
from pww.transport.tensorfile import TensorReader, TensorWriter
from pww.wire import PayloadInfo, Update

WORTH = 1.0
"""Updates are worth their bytes while they are less than this share of theta's."""


def worth(updates: Sequence[Update], whole: PayloadInfo) -> bool:
    """Whether these updates together are better than theta whole."""
    return sum(one.payload.size_bytes for one in updates) < WORTH * whole.size_bytes


def apply_update(base: Path, payload: Path, info: PayloadInfo, out: Path) -> str:
    """Writes `base` minus the decoded `payload` to `out`, durably; its state hash.

    Both are read in pieces of a few MiB. The payload's digest is the caller's to check.

    Raises:
        PayloadError: a file is damaged, or they are of different models; nothing is written.
        OSError: it could not be written (disk full); likewise.
    """
    with TensorReader(base) as thetas, PayloadReader(payload, info, hashed=False) as update:
        shapes = {name: thetas.shape(name) for name in thetas.names}
        if update.shapes != shapes:
            raise PayloadError(f"{payload.name} is the update of another model than {base.name}")
        layout = {name: (torch.float32, shape) for name, shape in shapes.items()}
        memory = torch.empty(PIECE)
        with TensorWriter(out, layout, {}) as writer:
            for name, shape in shapes.items():
                size, start = math.prod(shape), 0
                for step in update.pieces(name):
                    theta = memory[: step.numel()]
                    thetas.read(name, theta, start=start)
                    theta.sub_(step)
                    writer.extend(name, theta)
                    start += step.numel()
                assert start == size, "the pieces are the tensor"
            return writer.close().digest
