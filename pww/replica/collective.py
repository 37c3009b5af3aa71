"""The outer step between replicas of one allocation: rank j meets rank j, nothing leaves it.

Every rank keeps theta_outer, the momentum and the residual of its own shard, on its device or in
host memory, and takes the step on it by itself: with the weights, the order and the kernels of a
central (`pww.outer`), so that the bits are a central's. Deltas are gathered, not all-reduced: k is
small, the order of a sum decides its bits, and any codec fits. A piece of a tensor at a time: the
extra memory is some k pieces of 2 MiB.

A replica whose phase is not finite, or that trained on nothing, is left out, as at a central; all
start the next phase from theta_outer.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from typing import Literal, assert_never

import torch
from torch import nn

from pww.clock import Clock
from pww.codec import Codec
from pww.config import schema
from pww.errors import TrainerError
from pww.outer import add_weighted_, get_optimizer
from pww.replica.buffers import merge_buffers
from pww.replica.circle import Circle
from pww.replica.live import Piece, pieces
from pww.replica.tally import OuterReport, Tally
from pww.trainer.shards import buffers, gather, parameters
from pww.trainer.statistics import restore, snapshot
from pww.transport.fingerprint import PIECE

log = logging.getLogger(__name__)
Kind = Literal["theta", "momentum", "residual"]


class Collective:
    """The outer loop's state on one rank, and its step. All methods are collective.

    `codec` None: deltas travel as they are, in the precision of theta_outer, which is fp32, or fp64
    for a model in fp64. Build it before the first inner step: it makes theta(0) one and the same,
    that of replica 0, and of its rank 0 where a rank holds a whole copy.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        inner: Circle,
        outer: Circle,
        diloco: schema.Diloco,
        clock: Clock,
        codec: Codec | None = None,
        feedback: bool = False,
        device: torch.device | None = None,
    ) -> None:
        """`device`: where theta and momentum are; None: beside the parameters.

        Raises:
            TrainerError: the replicas are not built alike.
        """
        self._model, self._inner, self._outer = model, inner, outer
        self._diloco, self._clock, self._codec = diloco, clock, codec
        self.round = 0
        self.feedback = feedback  # what encoding loses is kept for the next delta
        self._theta: dict[str, torch.Tensor] = {}
        self._momentum: dict[str, torch.Tensor] = {}
        self._residual: dict[str, torch.Tensor] = {}
        self._require_alike()
        with torch.no_grad():
            for piece in self._pieces():
                if not piece.sharded:
                    inner.broadcast(piece.values)
                outer.broadcast(piece.values)
                kept = torch.promote_types(piece.values.dtype, torch.float32)
                theta = piece.values.to(device or piece.values.device, kept, copy=True)
                self._theta[piece.name] = theta
                self._momentum[piece.name] = torch.zeros_like(theta)
                if feedback:
                    self._residual[piece.name] = torch.zeros_like(theta)
            for _, buffer in buffers(model):
                inner.broadcast(buffer)
                outer.broadcast(buffer)
        self._buffers = snapshot(model)

    def theta(self, name: str) -> torch.Tensor:
        """This rank's flat shard of a parameter in theta_outer, in full precision."""
        return self._theta[name]

    def momentum(self, name: str) -> torch.Tensor:
        """As `theta`, the outer momentum."""
        return self._momentum[name]

    def residual(self, name: str) -> torch.Tensor:
        """As `theta`, what encoding lost of this replica's deltas and the next one carries."""
        return self._residual[name]

    @torch.no_grad()
    def step(self, tokens: int, *, partial: bool = False) -> OuterReport:
        """Merges what all replicas did since the last step; the model then holds theta_outer.

        `tokens` and `partial` are the replica's own, the same on its ranks. A round steps as a
        partial phase, without momentum, only if every phase in it is partial.

        Raises:
            TrainerError: the replicas are not at the same round, or theta would not be finite.
        """
        tally = self.look(tokens, partial=partial)
        if self._outer.place == 0 and self._inner.place == 0:
            for replica in sorted(set(range(self._outer.size)) - set(tally.merged)):
                log.warning(
                    "outer step %d: replica %d is left out, its phase is empty or not finite",
                    self.round + 1, replica,
                )  # fmt: skip
        return self.apply(tally)

    @torch.no_grad()
    def apply(self, tally: Tally) -> OuterReport:
        """The step that `look` has prepared; raises as `step`."""
        began_s = self._clock.monotonic()
        if tally.merged:
            self._merge(tally)
            merge_buffers(
                self._model, inner=self._inner, outer=self._outer, tokens=tally.counted_tokens
            )
            self._buffers = snapshot(self._model)
        else:
            self.go_back()
        self.round += 1
        return tally.report(
            outer_step=self.round, exchange_seconds=self._clock.monotonic() - began_s
        )

    def flush(self, tokens: int) -> OuterReport | None:
        """The last, partial phase, so that no token trained on is missing; None if nobody has any.

        It steps without momentum: a short delta is mis-scaled against a buffer of full phases.
        """
        if not any(left for (left,) in self._outer.numbers(float(tokens))):
            return None
        return self.step(tokens, partial=True)

    @torch.no_grad()
    def go_back(self) -> None:
        """The model holds theta_outer and its buffers: what was done since is void."""
        for piece in self._pieces():
            piece.values.copy_(self._theta[piece.name])
        restore(self._model, self._buffers)

    @torch.no_grad()
    def take(self, kind: Kind) -> None:
        """What the model holds becomes theta, the momentum or this replica's residual."""
        kept = self._kept(kind)
        for piece in self._pieces():
            kept[piece.name].copy_(piece.values)

    @torch.no_grad()
    def whole(self, kind: Kind, *, keep: bool) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Collective over the replica: theta and another part as whole fp32 tensors on the CPU.

        One parameter at a time, which holds the other part for a moment; where `keep` is false they
        are empty. Exhaust it.
        """
        other = self._kept(kind)
        named = zip(parameters(self._model), self._pieces(), strict=True)
        for (name, parameter), piece in named:
            piece.values.copy_(other[piece.name])
            part = gather(parameter, keep=keep)
            piece.values.copy_(self._theta[piece.name])
            yield name, gather(parameter, keep=keep), part

    def _kept(self, kind: Kind) -> dict[str, torch.Tensor]:
        match kind:
            case "theta":
                return self._theta
            case "momentum":
                return self._momentum
            case "residual":
                return self._residual
            case _:
                assert_never(kind)

    def _pieces(self) -> list[Piece]:
        return list(pieces(self._model, ranks=self._inner.size))

    def _require_alike(self) -> None:
        """Before the first exchange: a rank with other shapes would wait in it for ever."""
        text = repr([(p.name, tuple(p.values.shape), str(p.values.dtype)) for p in self._pieces()])
        text += repr([(name, tuple(b.shape), str(b.dtype)) for name, b in buffers(self._model)])
        mine = torch.frombuffer(
            bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8
        )
        alike = all(torch.equal(one, mine) for one in self._outer.gather(mine))
        if any(wrong for (wrong,) in self._inner.numbers(float(not alike))):
            raise TrainerError(
                "the replicas of this allocation have other parameters, shapes or shards: all need "
                "the same model and parallel settings"
            )

    @torch.no_grad()
    def look(self, tokens: int, *, partial: bool) -> Tally:
        """Who can take part and how far each went, the same answer on every rank.

        Raises:
            TrainerError: the replicas are not at the same round.
        """
        moved = size = 0.0
        for piece in self._pieces():
            theta = self._theta[piece.name]
            for at in _runs(theta):
                moved += piece.share * _square(_moved(theta[at], piece.values[at]))
                size += piece.share * _square(theta[at])
        moved, size = self._inner.sums((moved, size))
        rows = self._outer.numbers(float(self.round), float(tokens), float(partial), moved, size)
        if len({int(row[0]) for row in rows}) > 1:
            raise TrainerError(
                f"the replicas of this allocation are at rounds {[int(row[0]) for row in rows]}: "
                "resume all of them from the same checkpoint"
            )
        return Tally.of(rows, diloco=self._diloco)

    def _merge(self, tally: Tally) -> None:
        optimizer = get_optimizer(self._diloco.outer, contributors=len(tally.merged))
        mine = self._outer.place
        squares = [0.0] * (len(tally.merged) + 1)  # of each delta as it came, and of their mean
        sent, finite = 0, True
        for piece in self._pieces():
            theta, momentum = self._theta[piece.name], self._momentum[piece.name]
            residual = self._residual.get(piece.name)
            for at in _runs(theta):
                delta = _moved(theta[at], piece.values[at])
                if mine not in tally.merged:
                    delta.zero_()
                elif residual is not None:
                    delta.add_(residual[at])
                came, num_bytes = self._exchange(delta, piece.name, at.start)
                sent += num_bytes
                if residual is not None and mine in tally.merged:
                    torch.sub(delta, came[mine], out=residual[at])
                deltas = [came[replica] for replica in tally.merged]
                for row, one in enumerate(deltas):
                    squares[row] += piece.share * _square(one)
                mean = _mean(deltas, tally.share)
                squares[-1] += piece.share * _square(mean)
                optimizer.step(theta[at], momentum[at], mean, partial=tally.partial)
                finite = finite and _is_finite(theta[at]) and _is_finite(momentum[at])
                piece.values[at].copy_(theta[at])
        *squares, total, bad = self._inner.sums([*squares, float(not finite)])
        if bad:
            raise TrainerError(
                f"outer step {self.round + 1} would make theta not finite: lower diloco.outer.lr "
                "or optim.lr, and go on from the last checkpoint"
            )
        others = self._outer.size - 1
        tally.measured(squares, total, num_bytes=int(self._inner.sums([sent])[0]) * others)

    def _exchange(
        self, delta: torch.Tensor, name: str, start: int
    ) -> tuple[list[torch.Tensor], int]:
        """Every replica's part of a tensor as it decodes, in their order; and the bytes of ours."""
        if self._codec is None:
            return [one.clone() for one in self._outer.gather(delta)], delta.nbytes
        shape, where = tuple(delta.shape), f"{self.round}/{self._outer.place}/{self._inner.place}"
        seed = int.from_bytes(hashlib.sha256(f"{where}/{name}".encode()).digest()[:6], "big")
        parts = self._codec.encode(delta, seed=seed + start // self._codec.granule)
        gathered = {part: self._outer.gather(values) for part, values in parts.items()}
        decoded = [
            self._codec.decode({part: rows[i] for part, rows in gathered.items()}, shape).clone()
            for i in range(self._outer.size)
        ]
        return decoded, sum(values.nbytes for values in parts.values())


def _runs(tensor: torch.Tensor) -> list[slice]:
    return [slice(at, at + PIECE) for at in range(0, tensor.numel(), PIECE)]


def _moved(theta: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """theta_outer - theta_inner, from where training began: theta as the model's dtype holds it.

    So a model in bf16 that stands still has a delta of 0, not theta's last bits.
    """
    began = theta.to(inner.dtype).to(theta.dtype)
    return began - inner.to(theta.device, theta.dtype)


def _mean(deltas: Sequence[torch.Tensor], share: Sequence[float]) -> torch.Tensor:
    """The pinned sum, in the memory of the first."""
    mean = deltas[0].mul_(share[0])
    for delta, weight in zip(deltas[1:], share[1:], strict=True):
        add_weighted_(mean, delta, weight)
    return mean


def _square(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().sum())


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
