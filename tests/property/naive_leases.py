"""The lease table once more, naively: one entry for each position, no intervals and no events.

It shares no code with the table: a list that says whose each position is, a list of attempts, and
for each lease the set of its positions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

REPLICAS = ("s/a", "s/b", "s/c")
FREE, DONE, ASIDE = 0, -1, -2


@dataclass
class Lease:
    """What the model knows of one lease. `may`: positions where work was ever authorised."""

    replica: str
    spots: set[int]
    deadline_s: float
    promised_s: float
    may: set[int] = field(default_factory=set)
    pinned: str = ""
    life: str = "live"  # or "lapsed", "over"


class Naive:
    """`owner[p]` is FREE, DONE, ASIDE or a lease."""

    def __init__(self, size: int, epoch: int, limit: int) -> None:
        self.epoch, self.limit = epoch, limit
        self.owner, self.tries = [FREE] * size, [0] * size
        self.leases: dict[int, Lease] = {}
        self.count = dict.fromkeys(REPLICAS, 0)

    def live(self, replica: str = "") -> dict[int, Lease]:
        return {
            i: one
            for i, one in self.leases.items()
            if one.life == "live" and replica in ("", one.replica)
        }

    def take(self, spot: int, owner: int) -> None:
        assert self.owner[spot] == FREE
        self.owner[spot] = owner
        for one in self.leases.values():
            if one.life == "lapsed" and spot in one.spots:
                one.life = "over"

    def grant(self, replica: str, spots: Iterable[int], until_s: float, ttl_s: float) -> int:
        id_ = max(self.leases, default=0) + 1
        for spot in spots:
            self.take(spot, id_)
        self.leases[id_] = Lease(replica, set(spots), until_s, ttl_s)
        return id_

    def next_spots(self, num_blocks: int) -> list[int]:
        """What a grant takes, after setting aside what is in its way."""
        spots: list[int] = []
        for spot, owner in enumerate(self.owner):
            worn = self.limit > 0 and self.tries[spot] >= self.limit
            new_epoch = spots and spot // self.epoch != spots[0] // self.epoch
            if spots and (owner != FREE or worn or new_epoch or len(spots) == num_blocks):
                break
            if owner == FREE and worn:
                self.take(spot, ASIDE)
            elif owner == FREE:
                spots.append(spot)
        return spots

    def give_back(self, id_: int, reason: str) -> None:
        one = self.leases[id_]
        for spot in one.spots:
            self.owner[spot] = FREE
        if reason in ("expired", "taken over"):
            self.try_again(one, 1)
        one.life, one.pinned = ("lapsed" if reason == "expired" else "over"), ""

    def try_again(self, one: Lease, by: int) -> None:
        for spot in one.spots & one.may:
            self.tries[spot] += by

    def revive(self, id_: int, until_s: float, ttl_s: float) -> None:
        one = self.leases[id_]
        for spot in one.spots:
            assert self.owner[spot] == FREE
            self.owner[spot] = id_
        self.try_again(one, -1)
        one.life, one.deadline_s, one.promised_s = "live", until_s, ttl_s

    def commit(self, id_: int) -> None:
        one = self.leases[id_]
        for spot in one.spots:
            self.owner[spot], self.tries[spot] = DONE, 0
        self.count[one.replica] += len(one.spots)
        one.life, one.pinned = "over", ""

    def spare(self, thief: str) -> dict[int, set[int]]:
        """By lease, the positions that may be stolen by `thief`."""
        return {
            i: one.spots - one.may
            for i, one in self.live().items()
            if one.replica != thief and one.spots - one.may
        }

    def load(self, id_: int) -> int:
        """Positions that the lease's replica still has to train up to its end."""
        mine = self.live(self.leases[id_].replica)
        return sum(len(one.spots) for i, one in mine.items() if i <= id_ and not one.pinned)
