"""Payloads: encoded tensors in one file beside a message; by size and BLAKE3 no bit flip passes.

A tensor `w` becomes the file's tensors `w/<part>`, as its codec lays them out; the header names the
codec and every tensor's own shape. The digest is checked before anything is decoded.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pww.codec import Codec, Layout, codec_named, require_finite
from pww.errors import NotFiniteError, PayloadError
from pww.transport.digest import new_digest
from pww.transport.fingerprint import PIECE
from pww.transport.tensorfile import TensorReader, TensorWriter
from pww.wire import PayloadInfo

EXACT = "fp32"
"""The codec name of a plain file of fp32 tensors: theta, as it is seeded and published."""


def write_payload(
    path: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    shapes: Mapping[str, Sequence[int]],
    codec: Codec,
    *,
    seed: str = "",
    lost: Callable[[str, torch.Tensor], None] | None = None,
    synced: bool = True,
) -> PayloadInfo:
    """Encodes `tensors` (in the order of `shapes`) into `path`, or leaves nothing.

    Durably, but for `synced=False`: then the caller sees to that.

    A tensor is encoded where it lives, and only its parts come to the host. A codec whose decoding
    depends on the device works on the host, as it will at the other end: an accelerator's matrix
    products may be less than fp32, and what is lost would be told wrongly.

    `lost` is told of each tensor what decoding will not give back, tensor - decoded: flat, in runs
    of up to `PIECE` values, for these are all the memory that is needed. `seed` is a text that is
    another for every payload; codecs that draw, draw by it and the tensor's name.

    Raises:
        NotFiniteError: a value of a named tensor is nan or inf.
        PayloadError: a tensor, named, is not the announced one.
        OSError: it could not be written (disk full).
    """
    writer = PayloadWriter(path, shapes, codec, synced=synced)
    try:
        for name, tensor in tensors:
            writer.expect(name, tensor)
            flat, key = tensor.reshape(-1), draw_seed(seed, name)
            for start in range(0, max(flat.numel(), 1), PIECE):  # an empty tensor is an empty run
                run = flat[start : start + PIECE]
                if not codec.exact_decode:
                    run = run.cpu()
                try:
                    parts = codec.encode(run, seed=key + start // codec.granule)
                except NotFiniteError as fault:
                    raise NotFiniteError(f"tensor {name}: {_whole(tensor, fault)}") from fault
                writer.extend(name, parts, num_values=run.numel())
                if lost is not None:
                    lost(name, run - codec.decode(parts, (run.numel(),)))
        return writer.close()
    finally:
        writer.abort()  # nothing to do once it is closed


def _whole(tensor: torch.Tensor, fault: NotFiniteError) -> NotFiniteError:
    """What is wrong with all of a tensor, of which one run was refused."""
    try:
        require_finite(tensor)
    except NotFiniteError as whole:
        return whole
    return fault


def write_theta(path: Path, tensors: Iterable[tuple[str, torch.Tensor]],
                shapes: Mapping[str, Sequence[int]]) -> PayloadInfo:  # fmt: skip
    """Writes a plain fp32 tensor file, as theta is seeded and published.

    Raises:
        PayloadError: a tensor is not the announced one.
        OSError: it could not be written (disk full).
    """
    layout = {name: (torch.float32, tuple(int(n) for n in shape)) for name, shape in shapes.items()}
    with TensorWriter(path, layout, {}) as writer:
        for name, tensor in tensors:
            writer.add(name, tensor)
        written = writer.close()
    return PayloadInfo(codec=EXACT, size_bytes=written.size_bytes, digest=written.digest)


def verify(reader: TensorReader, info: PayloadInfo, *, what: str) -> None:
    """Lets a file pass that is, byte for byte, the one that `info` describes.

    Raises:
        PayloadError: it is another, shorter, longer or damaged one; `what` is said to be so.
    """
    if reader.size_bytes != info.size_bytes:
        raise PayloadError(_wrong_size(what, reader.size_bytes, info))
    digest = reader.digest()
    if digest != info.digest:
        raise PayloadError(
            f"{what} has BLAKE3 {digest}, announced was {info.digest}: damaged; send it again"
        )


class PayloadWriter:
    """Writes the payload `path` run by run, in the order of `shapes`; `close` makes it appear.

    Runs are multiples of the codec's granule, except for a tensor's last one. Of each tensor the
    first part goes straight to the file; the others, which are small (scales, the values that topk
    keeps), wait in memory for its end.
    A full disk is the caller's to explain: its `OSError` comes through once the part is removed.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, Sequence[int]],
        codec: Codec,
        *,
        synced: bool = True,
    ) -> None:
        own = {name: tuple(int(n) for n in shape) for name, shape in shapes.items()}
        metadata = {"codec": codec.name, "shapes": json.dumps(own, separators=(",", ":"))}
        self._codec, self._shapes = codec, own
        self._left = {name: math.prod(shape) for name, shape in own.items()}
        self._waiting: dict[str, list[torch.Tensor]] = {}
        self._writer = TensorWriter(path, payload_layout(own, codec), metadata, synced=synced)

    def expect(self, name: str, tensor: torch.Tensor) -> None:
        """Lets a tensor pass that is laid out as announced.

        Raises:
            PayloadError: it is not.
        """
        if tuple(tensor.shape) != self._shapes.get(name):
            raise PayloadError(
                f"tensor {name} has shape {tuple(tensor.shape)}, announced was "
                f"{self._shapes.get(name)}"
            )

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
            codec=self._codec.name, size_bytes=written.size_bytes, digest=written.digest
        )

    def abort(self) -> None:
        """Removes what was written; safe to call twice, and after `close` it does nothing."""
        self._writer.abort()


class PayloadReader:
    """Decodes a payload tensor by tensor, after its size and digest were found right.

    With `hashed=False` the digest is the caller's to check, over what he reads.

    Raises:
        PayloadError: on opening, if the file is not what `info` says, or not a payload.
    """

    def __init__(self, path: Path, info: PayloadInfo, *, hashed: bool = True) -> None:
        self._codec = codec_named(info.codec)
        self._buffers: dict[str, torch.Tensor] = {}  # of a piece
        self._reader = TensorReader(path)
        try:
            if hashed:
                verify(self._reader, info, what=path.name)
            elif self._reader.size_bytes != info.size_bytes:
                raise PayloadError(_wrong_size(path.name, self._reader.size_bytes, info))
            self.shapes = self._read_shapes()
        except BaseException:
            self._reader.close()
            raise

    def tensor(self, name: str) -> torch.Tensor:
        """The decoded fp32 tensor, in memory of its own.

        Raises:
            PayloadError: there is none of that name, or its parts are damaged.
        """
        if name not in self.shapes:
            raise PayloadError(f"no tensor {name} in the payload")
        parts = {
            part: self._reader.get(f"{name}/{part}")
            for part in self._codec.layout(self.shapes[name])
        }
        return self.decode(parts, self.shapes[name])

    @property
    def granule(self) -> int:
        """Runs of values that start at a multiple of it can be decoded alone."""
        return self._codec.granule

    def buffers(self, size: int) -> dict[str, torch.Tensor]:
        """Memory for the parts of `size` values."""
        layout = self._codec.layout((size,))
        return {part: torch.empty(shape, dtype=dtype) for part, (dtype, shape) in layout.items()}

    def fill(
        self, buffers: Mapping[str, torch.Tensor], name: str, *, start: int, size: int
    ) -> dict[str, torch.Tensor]:
        """The parts of `size` values of a tensor from `start` on, read into `buffers`.

        `start` is a multiple of `granule`, and so is `size`, or it goes up to the end.
        """
        before, here = self._codec.layout((start,)), self._codec.layout((size,))
        parts = {part: buffers[part][: math.prod(shape)] for part, (_, shape) in here.items()}
        for part, values in parts.items():
            self._reader.read(f"{name}/{part}", values, start=math.prod(before[part][1]))
        return parts

    def decode(self, parts: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """The fp32 values of parts.

        Raises:
            PayloadError: they hold what the codec never writes.
        """
        return self._codec.decode(parts, shape)

    def pieces(
        self, name: str, *, seen: Callable[[torch.Tensor], None] = lambda part: None
    ) -> Iterator[torch.Tensor]:
        """A tensor's decoded values, flat, up to `PIECE` at a time; each lasts until the next.

        One piece is in memory, in the same buffers for all tensors. `seen` gets each part as it
        lies in the file.

        Raises:
            PayloadError: its codec did not write that, by name.
        """
        assert PIECE % self.granule == 0, "pieces start where a run may start"
        if not self._buffers:
            largest = max((math.prod(shape) for shape in self.shapes.values()), default=0)
            self._buffers = self.buffers(min(PIECE, largest))
        total = math.prod(self.shapes[name])
        for start in range(0, max(total, 1), PIECE):  # an empty tensor is one empty piece
            size = min(PIECE, total - start)
            parts = self.fill(self._buffers, name, start=start, size=size)
            for part in parts.values():
                seen(part)
            try:
                yield self.decode(parts, (size,))
            except PayloadError as fault:
                raise PayloadError(f"tensor {name}: {fault}") from fault

    def close(self) -> None:
        """Lets go of the file."""
        self._reader.close()

    def __enter__(self) -> "PayloadReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_shapes(self) -> dict[str, tuple[int, ...]]:
        if self._reader.metadata.get("codec") != self._codec.name:
            raise PayloadError(
                f"payload was written by codec {self._reader.metadata.get('codec')!r:.40}, "
                f"announced was {self._codec.name}"
            )
        try:
            rows: Any = json.loads(self._reader.metadata.get("shapes", ""))
            shapes = {str(name): _shape(row) for name, row in rows.items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as why:
            raise PayloadError(f"payload: its table of shapes cannot be read ({why})") from why
        expected = payload_layout(shapes, self._codec)
        here = {n: (self._reader.dtype(n), self._reader.shape(n)) for n in self._reader.names}
        if expected != here:
            odd = sorted(name for name in expected.keys() | here.keys()
                         if expected.get(name) != here.get(name))  # fmt: skip
            raise PayloadError(f"payload: tensor {odd[0]} is not what its table of shapes says")
        return shapes


def _wrong_size(what: str, size_bytes: int, info: PayloadInfo) -> str:
    return f"{what} has {size_bytes} bytes, announced were {info.size_bytes}: send it again"


def draw_seed(payload: str, tensor: str) -> int:
    """64 bits: no two tensors of a run draw alike."""
    return int.from_bytes(new_digest(f"{payload}\0{tensor}".encode()).digest()[:8], "little")


def payload_layout(shapes: Mapping[str, tuple[int, ...]], codec: Codec) -> Layout:
    """The parts of all tensors of a payload, in the order in which they are written."""
    return {
        f"{name}/{part}": row
        for name, shape in shapes.items()
        for part, row in codec.layout(shape).items()
    }


def _shape(row: Any) -> tuple[int, ...]:
    if not isinstance(row, list) or not all(type(n) is int and n >= 0 for n in row):
        raise ValueError("a shape is a list of counts")
    return tuple(row)
