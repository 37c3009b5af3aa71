"""What workers send one another: through the codec of a run, with its residual, and merged.

    v    = delta + decay * e          e: the worker's residual; decay is 1 in a run
    sent = decode(encode(v))
    e'   = v - sent

An attacker keeps what an honest worker would keep; only what it sends is another vector, in the
place of v. (If it kept what its attack left, that would be attacked again in the next round.)
Each tensor is encoded by itself, as in a payload, and draws by the worker, the round and its name.
"""

from collections.abc import Sequence

import torch

from pww.codec import codec_named
from pww.config.schema.lab import LabConfig
from pww.lab import traffic
from pww.lab.attackers import attack_
from pww.lab.coding import recoded
from pww.lab.seeds import generator, seed_of
from pww.lab.stack import Shapes, places
from pww.outer.merge import merged
from pww.outer.step import weights


class Exchange:
    """Codec, residuals, attackers and merge rule of one run, and the bytes so far."""

    def __init__(self, config: LabConfig, shapes: Shapes, *, decay: float = 1.0) -> None:
        """`decay`: what is left of a residual in the next round; see `coded` for who has none."""
        self.exact = config.codec.kind == "fp32" and config.attack.kind == "none"
        self._codec = codec_named(config.codec.name)
        self._merge, self._attack = config.merge, config.attack
        self._workers, self._all = config.workers, traffic.Traffic()
        self._seed, self._decay = config.seed, decay
        self._draws = generator(config.seed, "attack")
        self._shapes, self._places = dict(shapes), places(shapes)
        self._residual = torch.zeros(0)
        if config.codec.feedback:
            size = sum(place.stop - place.start for place in self._places.values())
            self._residual = torch.zeros(config.workers, size)

    @property
    def traffic(self) -> traffic.Traffic:
        """Bytes of a worker so far: the mean over all workers, present or not."""
        return self._all.share(self._workers)

    def fed_back(
        self, rows: torch.Tensor, *, round_: int, who: Sequence[int], names: Sequence[str]
    ) -> torch.Tensor:
        """What is decoded of `rows` and residuals, row i of worker `who[i]`; keeps what is lost.

        `names`: the tensors, neighbours, that the rows consist of.

        Raises:
            NotFiniteError: a value is nan or inf.
        """
        if not self._residual.numel():
            return self.coded(rows, round_=round_, who=who, names=names)[1]
        columns = slice(self._places[names[0]].start, self._places[names[-1]].stop)
        kept = self._residual[:, columns]
        wanted = rows + (kept[list(who)] if self._decay == 1.0 else kept[list(who)] * self._decay)
        own, sent = self.coded(wanted, round_=round_, who=who, names=names)
        kept[list(who)] = wanted - own
        return sent

    def coded(
        self, rows: torch.Tensor, *, round_: int, who: Sequence[int], names: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What is decoded of `rows` (only read), without residuals: honestly, and as it is sent.

        The two are one tensor where nobody attacks. State, such as a momentum, follows the first.

        Raises:
            NotFiniteError: a value is nan or inf.
        """
        own = self._recoded(rows, round_=round_, who=who, names=names)
        if self._attack.kind == "none":
            return own, own
        false = rows.clone()
        attack_(false, self._attack, generator=self._draws)
        return own, self._recoded(false, round_=round_, who=who, names=names)

    def _recoded(
        self, rows: torch.Tensor, *, round_: int, who: Sequence[int], names: Sequence[str]
    ) -> torch.Tensor:
        start = self._places[names[0]].start
        here = {
            name: slice(self._places[name].start - start, self._places[name].stop - start)
            for name in names
        }

        def seed(row: int, name: str) -> int:
            return seed_of(self._seed, f"{who[row]} {round_}", name)

        return recoded(self._codec, rows, here, seed=seed)

    def merged(
        self, sent: torch.Tensor, *, shares: Sequence[float], names: Sequence[str]
    ) -> torch.Tensor:
        """One vector of what was sent by so many, by these weights; counts the bytes."""
        found = merged(sent, shares, self._merge)
        each = traffic.exchange(
            self._codec, {name: self._shapes[name] for name in names}, found,
            senders=len(sent), added=self._merge.kind in ("mean", "clipped"),
        )  # fmt: skip
        self._all.add(each, times=len(sent))
        return found


def equal(count: int) -> list[float]:
    """The weights of so many equals, as a run has them."""
    return weights([1] * count, [0] * count, 0.0)
