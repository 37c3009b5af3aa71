"""Who is where when one allocation holds k replicas: equal, contiguous blocks of ranks.

The inner all-reduce of every step so keeps the fastest links (those inside a node), and rank j of
a replica meets rank j of the others, which holds the same shard: k-way exchanges side by side,
without a leader. 8 ranks, k = 2: replicas 0-3 and 4-7, outer groups {0,4} {1,5} {2,6} {3,7}.
"""

from dataclasses import dataclass

from pww.errors import TrainerError


@dataclass(frozen=True, slots=True)
class Blocks:
    """`replicas` equal blocks of `ranks`; built by `of`."""

    ranks: int
    replicas: int

    @classmethod
    def of(cls, ranks: int, *, replicas: int) -> "Blocks":
        """The blocks of an allocation.

        Raises:
            TrainerError: they would not be equal.
        """
        if replicas < 1 or ranks % replicas:
            divisors = ", ".join(str(d) for d in range(1, ranks + 1) if ranks % d == 0)
            raise TrainerError(
                f"diloco.replicas={replicas}: {ranks} ranks cannot be that many equal blocks; "
                f"one of {divisors}"
            )
        return cls(ranks, replicas)

    @property
    def size(self) -> int:
        """Ranks of one replica."""
        return self.ranks // self.replicas

    def replica(self, rank: int) -> int:
        """The replica that a rank belongs to."""
        return rank // self.size

    def place(self, rank: int) -> int:
        """Which rank of its replica it is; it exchanges with that of the others."""
        return rank % self.size
