"""A payload written run by run: tensors that are too large for memory, encoded as they come.

Runs are multiples of the codec's granule, except for a tensor's last one. Of each tensor the first
part goes straight to the file; the others (scales, indices) wait in memory for its end.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pww.codec import Codec
from pww.transport.payload import payload_layout
from pww.transport.tensorfile import TensorWriter
from pww.wire import PayloadInfo


class PayloadWriter:
    """Writes the payload `path` in the order of `shapes`; `close` makes it appear, durable.

    A full disk is the caller's to explain: its `OSError` comes through once the part is removed.
    """

    def __init__(self, path: Path, shapes: Mapping[str, Sequence[int]], codec: Codec) -> None:
        own = {name: tuple(int(n) for n in shape) for name, shape in shapes.items()}
        metadata = {"codec": codec.name, "shapes": json.dumps(own, separators=(",", ":"))}
        self._codec = codec
        self._left = {name: math.prod(shape) for name, shape in own.items()}
        self._waiting: dict[str, list[torch.Tensor]] = {}
        self._writer = TensorWriter(path, payload_layout(own, codec), metadata)

    def extend(self, name: str, parts: Mapping[str, torch.Tensor], *, num_values: int) -> None:
        """Appends the parts of the next `num_values` values of a tensor; they are ours from now on.

        Raises:
            PayloadError: they are not those that the layout announces.
        """
        first, *others = parts
        self._writer.extend(f"{name}/{first}", parts[first])
        for part in others:
            self._waiting.setdefault(part, []).append(parts[part].reshape(-1))
        self._left[name] -= num_values
        if self._left[name] == 0:
            for part in others:
                for values in self._waiting.pop(part):
                    self._writer.extend(f"{name}/{part}", values)

    def close(self) -> PayloadInfo:
        """Makes the file durable under its name.

        Raises:
            PayloadError: a tensor that was announced is missing.
        """
        written = self._writer.close()
        return PayloadInfo(
            codec=self._codec.name, size_bytes=written.size_bytes, sha256=written.sha256
        )

    def abort(self) -> None:
        """Removes what was written; safe to call twice, and after `close` it does nothing."""
        self._writer.abort()
