"""What one phase is: how many blocks, which windows, and where the LR schedule stands."""

from dataclasses import dataclass

from pww.config.schema import Config
from pww.lease.policy import blocks_for_phase
from pww.lease.space import BlockSpace
from pww.transport.exchange import Theta
from pww.wire import Lease, Span


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """H steps of `batch_windows` windows each, leased as whole blocks."""

    space: BlockSpace
    inner_steps: int
    batch_windows: int
    replicas: int = 1  # that share a lease: those of one allocation

    @classmethod
    def of(cls, config: Config, space: BlockSpace) -> "PhasePlan":
        """The plan that `config` asks for."""
        return cls(
            space, config.diloco.inner_steps, config.optim.batch_windows, config.diloco.replicas
        )

    @property
    def num_blocks(self) -> int:
        """Blocks that one phase leases, of all replicas."""
        return self.replicas * blocks_for_phase(
            self.space, inner_steps=self.inner_steps, batch_windows=self.batch_windows
        )

    def windows(self, lease: Lease, *, replica: int = 0) -> list[int]:
        """Window ids that a replica trains on, in that order: all of the lease if it is alone."""
        mine = self.part(lease, replica=replica)
        return [w for p in mine for w in self.space.windows(p)]

    def part(self, lease: Lease, *, replica: int) -> range:
        """A replica's positions of the lease: contiguous, and as many as the others', give or take
        one; none if there are too few.
        """
        share, left = divmod(len(lease.span), self.replicas)
        start = lease.span.start + replica * share + min(replica, left)
        return range(start, start + share + (replica < left))

    def num_steps(self, lease: Lease) -> int:
        """Steps that the lease takes, at most H; of the replica that takes most."""
        parts = [self.part(lease, replica=replica) for replica in range(self.replicas)]
        most = max(
            self.space.num_span_windows(Span(part.start, part.stop)) for part in parts if part
        )
        return -(-most // self.batch_windows)

    def is_partial(self, lease: Lease) -> bool:
        """Whether the outer step must not put this phase into its momentum.

        So it is where a corpus ends or another replica took the tail, not where a phase was meant
        to be shorter than H.
        """
        meant = min(lease.meant or self.num_blocks, self.num_blocks)
        full = -(-meant // self.replicas) * self.space.block_windows
        return self.num_steps(lease) < -(-full // self.batch_windows)

    def progress(self, lease: Lease, theta: Theta, *, ahead: int = 0) -> tuple[float, float]:
        """Share of all windows that is in `theta`, and with this lease added.

        `ahead` windows count as in it: they are on their way to the next one.
        """
        total = self.space.total_windows
        start = min(theta.committed_windows + ahead, total)
        end = min(start + self.space.num_span_windows(lease.span), total)
        return start / total, end / total
