"""Payloads: encoded tensors in one file beside a message; by size and SHA-256 no bit flip passes.

A tensor `w` becomes the file's tensors `w/<part>`, as its codec lays them out; the header names the
codec and every tensor's own shape. The digest is checked before anything is decoded.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pww.codec import Codec, Layout, codec_named
from pww.errors import NotFiniteError, PayloadError
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
) -> PayloadInfo:
    """Encodes `tensors` (in the order of `shapes`) into `path`, durably, or leaves nothing.

    `lost` is told of each tensor what decoding will not give back: tensor - decoded. `seed` is a
    text that is another for every payload; codecs that draw, draw by it and the tensor's name.

    Raises:
        NotFiniteError: a value of a named tensor is nan or inf.
        PayloadError: a tensor, named, is not the announced one.
        OSError: it could not be written (disk full).
    """
    own = {name: tuple(int(n) for n in shape) for name, shape in shapes.items()}
    metadata = {"codec": codec.name, "shapes": json.dumps(own, separators=(",", ":"))}
    with TensorWriter(path, _layout(own, codec), metadata) as writer:
        for name, tensor in tensors:
            if tuple(tensor.shape) != own.get(name):
                raise PayloadError(
                    f"tensor {name} has shape {tuple(tensor.shape)}, announced was {own.get(name)}"
                )
            try:
                parts = codec.encode(tensor, seed=_seed(seed, name))
            except NotFiniteError as fault:
                raise NotFiniteError(f"tensor {name}: {fault}") from fault
            for part, values in parts.items():
                writer.add(f"{name}/{part}", values)
            if lost is not None:
                lost(name, tensor - codec.decode(parts, own[name]))
        written = writer.close()
    return PayloadInfo(codec=codec.name, size_bytes=written.size_bytes, sha256=written.sha256)


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
    return PayloadInfo(codec=EXACT, size_bytes=written.size_bytes, sha256=written.sha256)


def verify(reader: TensorReader, info: PayloadInfo, *, what: str) -> None:
    """Lets a file pass that is, byte for byte, the one that `info` describes.

    Raises:
        PayloadError: it is another, shorter, longer or damaged one; `what` is said to be so.
    """
    if reader.size_bytes != info.size_bytes:
        raise PayloadError(_wrong_size(what, reader.size_bytes, info))
    digest = reader.sha256()
    if digest != info.sha256:
        raise PayloadError(
            f"{what} has SHA-256 {digest}, announced was {info.sha256}: damaged; send it again"
        )


class PayloadReader:
    """Decodes a payload tensor by tensor, after its size and digest were found right.

    With `hashed=False` the digest is the caller's to check, over what he reads.

    Raises:
        PayloadError: on opening, if the file is not what `info` says, or not a payload.
    """

    def __init__(self, path: Path, info: PayloadInfo, *, hashed: bool = True) -> None:
        self._codec = codec_named(info.codec)
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
        expected = _layout(shapes, self._codec)
        here = {n: (self._reader.dtype(n), self._reader.shape(n)) for n in self._reader.names}
        if expected != here:
            odd = sorted(name for name in expected.keys() | here.keys()
                         if expected.get(name) != here.get(name))  # fmt: skip
            raise PayloadError(f"payload: tensor {odd[0]} is not what its table of shapes says")
        return shapes


def _wrong_size(what: str, size_bytes: int, info: PayloadInfo) -> str:
    return f"{what} has {size_bytes} bytes, announced were {info.size_bytes}: send it again"


def _seed(payload: str, tensor: str) -> int:
    """64 bits: no two tensors of a run draw alike."""
    return int.from_bytes(hashlib.sha256(f"{payload}\0{tensor}".encode()).digest()[:8], "little")


def _layout(shapes: Mapping[str, tuple[int, ...]], codec: Codec) -> Layout:
    return {
        f"{name}/{part}": row
        for name, shape in shapes.items()
        for part, row in codec.layout(shape).items()
    }


def _shape(row: Any) -> tuple[int, ...]:
    if not isinstance(row, list) or not all(type(n) is int and n >= 0 for n in row):
        raise ValueError("a shape is a list of counts")
    return tuple(row)
