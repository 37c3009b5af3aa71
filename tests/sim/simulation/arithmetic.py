"""What sites and central must have computed, from the draws alone and in NumPy.

Of a codec nothing is known here but that what it loses is kept: for each delta

    sent + kept after it  =  moved + kept after the delta that it was encoded on

and for each round, with the update of the outer step, theta - kept goes down by just that update.
So nothing is lost by encoding, over any crash, and no rounding of a code makes a check flicker.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from simulation import disk
from simulation.kernel import World
from simulation.trainer import SHAPES, State, inner_step, read_theta, start_of

from pww.lease.space import BlockSpace
from pww.replica.outbox import Entry
from pww.transport.payload import PayloadReader
from pww.wire import Offer

EXACT, LOSSY = 2e-6, 4e-6
"""Half a unit in the last place of fp32 for each rounding; a residual takes two more."""


def nothing() -> State:
    return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}


def _gap(one: State, other: State) -> float:
    return max(float(np.max(np.abs(one[name] - other[name]))) for name in one)


def _sum(one: State, other: State) -> State:
    return {name: one[name] + other[name] for name in one}


def _any(state: State) -> bool:
    return any(bool(np.any(value)) for value in state.values())


class Arithmetic:
    """The numbers of one run."""

    def __init__(self, world: World, *, space: BlockSpace, config: Any, batch: int) -> None:
        self._world, self._space, self._batch = world, space, batch
        self._outer, self._discount = config.diloco.outer, config.diloco.staleness_discount
        self.thetas: dict[int, State] = {}
        self._left: dict[int, State] = {}  # what encoding the update of each round left over
        self.began: dict[int, int | str] = {}  # by lease: the round or delta it began from
        self.offers: dict[str, Offer] = {}
        self._ends: dict[str, State] = {}
        self._sent: dict[str, State] = {}
        self._kept: dict[str, State] = {}
        self._last: dict[str, str] = {}  # by replica: its last merged delta
        self._lives: dict[str, int] = {}  # of who keeps something: the process that last did
        self.seen: Counter[str] = Counter()

    # --------------------------------------------------------------------------- as it happens

    def published(self, number: int, generation: Any, *, life: int) -> None:
        """Theta of a round, and what the central keeps for the next update."""

        def read() -> tuple[State, State]:
            kept = generation.residual
            return read_theta(generation.theta), nothing() if kept is None else read_theta(kept)

        self.thetas[number], self._left[number] = disk.alone(read)
        if _any(self._left.get(number - 1, {})) and self._lives.get("central", life) != life:
            self.seen["the central's residual outlived its process"] += 1
        self._lives["central"] = life

    def encoded(self, entry: Entry, *, replica: str, life: int) -> None:
        """A delta that is durable at its site: what it sends, and what is kept."""
        offer = entry.offer
        if offer.delta in self._sent:
            return

        def read() -> tuple[State, State]:
            with PayloadReader(entry.payload, offer.payload) as reader:
                sent = {name: reader.tensor(name).numpy().copy() for name in SHAPES}
            kept: Path = entry.residual
            return sent, read_theta(kept) if kept.exists() else nothing()

        self._sent[offer.delta], self._kept[offer.delta] = disk.alone(read)
        self.offers[offer.delta] = offer
        if _any(self._kept.get(offer.prev, {})) and self._lives.get(replica, life) != life:
            self.seen["a site's residual outlived its process"] += 1
        self._lives[replica] = life

    # ------------------------------------------------------------------------------- at the end

    def check(self, merged: list[tuple[int, Offer, int]], *, last: int) -> None:
        """Every published theta, and every sum of what a replica sent."""
        if not self.thetas:
            return
        first = self.thetas[0]
        starts = [start_of(i) for i in range(4)]
        if not any(_gap(start, first) == 0.0 for start in starts):
            self._world.fail("theta(0) is nobody's")
        self._check_sums([offer for _, offer, _ in sorted(merged, key=lambda one: one[0])])
        momentum = nothing()
        for number in range(1, last + 1):
            took = sorted(
                (one for one in merged if one[0] == number),
                key=lambda one: (one[1].replica, one[1].delta),
            )
            if not took:
                self._world.fail(f"round {number} merged nothing")
            self._check_round(number, took, momentum)

    def _check_round(
        self, number: int, took: list[tuple[int, Offer, int]], momentum: State
    ) -> None:
        total = sum(offer.tokens for _, offer, _ in took)
        mean = nothing()
        for _, offer, staleness in took:
            share = np.float32(offer.tokens / total / (1.0 + self._discount * staleness))
            mean = _sum(mean, {n: v * share for n, v in self._sent[offer.delta].items()})
        partial = all(offer.partial for _, offer, _ in took)
        factor = np.float32(0.0 if partial else self._outer.momentum)
        now, before = self._whole(number), self._whole(number - 1)
        for name, value in mean.items():
            velocity = momentum[name] * factor + value
            update = (velocity * factor + value) * np.float32(self._outer.lr)
            if not partial:
                momentum[name] = velocity
            gap = float(np.max(np.abs(before[name] - update - now[name])))
            if not gap <= (LOSSY if _any(self._left[number]) else EXACT):
                self._world.fail(f"theta of round {number} is {gap:g} off in {name}")
                return
        self.seen["the central kept a residual"] += _any(self._left[number])

    def _whole(self, number: int) -> State:
        """Theta as it were if all of the updates had travelled."""
        left = self._left[number]
        return {name: value - left[name] for name, value in self.thetas[number].items()}

    def _check_sums(self, merged: list[Offer]) -> None:
        """One delta after the other, and each replica's sum."""
        totals: dict[str, tuple[State, State, int]] = {}
        for offer in merged:
            if offer.delta not in self._sent:
                self._world.fail(f"merged delta {offer.delta} was never encoded")
                return
            before = self._kept[offer.prev] if offer.prev else nothing()
            moved = _sum(self._moved(offer), before)
            sent = _sum(self._sent[offer.delta], self._kept[offer.delta])
            if (gap := _gap(moved, sent)) > LOSSY:
                self._world.fail(f"{offer.delta} and what is kept after it are {gap:g} off")
            self.seen["a site kept a residual"] += _any(self._kept[offer.delta])
            sums, moves, count = totals.get(offer.replica, (nothing(), nothing(), 0))
            if not offer.prev and count:  # what was kept is dropped, and sent with the sum
                sums = _sum(sums, self._kept[self._last[offer.replica]])
            sums, moves = _sum(sums, self._sent[offer.delta]), _sum(moves, self._moved(offer))
            totals[offer.replica] = (sums, moves, count + 1)
            self._last[offer.replica] = offer.delta
        for replica, (sums, moves, count) in totals.items():
            gap = _gap(_sum(sums, self._kept[self._last[replica]]), moves)
            if gap > LOSSY * count:
                self._world.fail(f"all that {replica} sent and keeps is {gap:g} off")

    def _moved(self, offer: Offer) -> State:
        base, end = self.thetas[offer.base_round], self._end(offer)
        return {name: base[name] - end[name] for name in base}

    def _end(self, offer: Offer) -> State:
        """The replica's weights when it put the delta, from the draws and published thetas."""
        if offer.delta in self._ends:
            return self._ends[offer.delta]
        windows = [
            w
            for leased in offer.spans
            for p in range(leased.span.start, leased.span.stop)
            for w in self._space.windows(p)
        ]
        began = self.began[offer.spans[0].lease]
        start = self.thetas[began] if isinstance(began, int) else self._end(self.offers[began])
        end = start
        for i in range(0, len(windows), self._batch):
            end = inner_step(end, windows[i : i + self._batch])
        if isinstance(began, str):
            base = self.thetas[offer.base_round]
            end = {name: base[name] + (end[name] - start[name]) for name in base}
        self._ends[offer.delta] = end
        return end
