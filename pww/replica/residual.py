"""Error feedback: what encoding a delta loses is kept on disk and goes out with the next delta.

    v       = delta + e            e: the residual in force, 0 where there is none
    payload = encode(v)
    e_next  = v - decode(payload)

So what was sent, plus the last residual, is the sum of the deltas. fp32, a few MiB at a time, on
the device of the delta. The residual in force is always added, also where none is kept any more
(an exact codec): then it goes out whole. Which one is in force is the outbox's to say; here are
only its bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import torch

from pww.errors import PayloadError
from pww.transport.fingerprint import PIECE
from pww.transport.tensorfile import TensorReader, TensorWriter


class Feedback:
    """One delta's way through the feedback; rank 0 only. Use it as a context manager.

    A block that fails leaves no file at `after`, one that succeeds leaves it durable.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], *, before: Path | None, after: Path | None
    ) -> None:
        """`before` holds the residual in force, `after` gets the next; None: there is none.

        To make `after` durable is the caller's.

        Raises:
            PayloadError: what lies at `before` is damaged or of another model.
            OSError: `after` cannot be written.
        """
        own = {name: tuple(int(n) for n in shape) for name, shape in shapes.items()}
        self._before = None if before is None else _opened(before, own)
        self._after: TensorWriter | None = None
        self._square = 0.0
        if after is not None:
            layout = {name: (torch.float32, shape) for name, shape in own.items()}
            try:
                self._after = TensorWriter(after, layout, {}, hashed=False, synced=False)
            except OSError:
                self._let_go()
                raise

    def carried(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor, contiguous and the caller's to give, with its residual added in place."""
        buffer = torch.empty(0 if self._before is None else PIECE)
        for name, tensor in tensors:
            if self._before is not None:
                start = 0
                for piece in torch.split(tensor.view(-1), PIECE):
                    here = buffer[: piece.numel()]
                    self._before.read(name, here, start=start)
                    piece.add_(here.to(piece.device))
                    start += piece.numel()
            yield name, tensor

    def keep(self, name: str, lost: torch.Tensor) -> None:
        """Takes what encoding the next run of a tensor lost, in order; raises OSError."""
        assert self._after is not None
        self._square += float(lost.double().square().sum())
        self._after.extend(name, lost)

    @property
    def norm(self) -> float:
        """L2 norm of the next residual."""
        return math.sqrt(self._square)

    def __enter__(self) -> "Feedback":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go()
        if self._after is not None:
            self._after.__exit__(kind, fault, trace)

    def _let_go(self) -> None:
        if self._before is not None:
            self._before.close()


def _opened(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> TensorReader:
    try:
        reader = TensorReader(path)
        here = {name: (reader.dtype(name), reader.shape(name)) for name in reader.names}
        if here != {name: (torch.float32, shape) for name, shape in shapes.items()}:
            reader.close()
            raise PayloadError(f"{path} is of another model")
    except PayloadError as why:
        raise PayloadError(
            f"the residual of the last merged delta cannot be used ({why}): remove {path} to go on "
            "without it, which loses what that delta did not send"
        ) from why
    return reader
