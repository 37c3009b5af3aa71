"""Knows bytes again at 30 GB/s: the sums of 64-bit words, piece by piece and in order.

For the central's own copies, of which a digest was right once or which never leave it: it finds
damage, not malice. One flipped bit always shows, and a piece that is lost, cut, zeroed or in
another's place but for a chance of 2^-64. A digest would cost a merge a sixth of its time.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch

from pww.transport.tensorfile import TensorReader, byte_view

PIECE = 1 << 19
"""Values of a tensor taken together, 2 MiB of fp32. Another number gives other fingerprints."""


class Fingerprint:
    """The pieces of a file's tensors, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, piece: torch.Tensor) -> None:
        """Takes in up to `PIECE` values of a tensor."""
        data = byte_view(piece)
        whole = len(data) // 8 * 8
        words = np.frombuffer(data[:whole], dtype=np.int64).sum()
        self._hash.update(int(words).to_bytes(8, "little", signed=True))
        self._hash.update(data[whole:])

    def add_all(self, tensor: torch.Tensor) -> None:
        """Takes in a whole tensor; an empty one is an empty piece."""
        for piece in torch.split(tensor.reshape(-1), PIECE):
            self.add(piece)

    def hexdigest(self) -> str:
        """The fingerprint of what was added."""
        return self._hash.hexdigest()


def fingerprint(path: Path) -> str:
    """The fingerprint of a file of fp32 tensors.

    Raises:
        PayloadError: it is damaged in its structure, or not fp32.
    """
    seen, buffer = Fingerprint(), torch.empty(PIECE)
    with TensorReader(path) as reader:
        for name in reader.names:
            size = reader.size(name)
            for start in range(0, max(size, 1), PIECE):  # an empty tensor is one empty piece
                piece = buffer[: min(PIECE, size - start)]
                reader.read(name, piece, start=start)
                seen.add(piece)
    return seen.hexdigest()
