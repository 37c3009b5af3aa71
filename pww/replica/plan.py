"""What one phase is: how many blocks, which windows, and where the LR schedule stands."""

from dataclasses import dataclass

from pww.config.schema import Config
from pww.lease.policy import blocks_for_phase
from pww.lease.space import BlockSpace
from pww.transport.exchange import Theta
from pww.wire import Lease


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """H steps of `batch_windows` windows each, leased as whole blocks."""

    space: BlockSpace
    inner_steps: int
    batch_windows: int

    @classmethod
    def of(cls, config: Config, space: BlockSpace) -> "PhasePlan":
        """The plan that `config` asks for."""
        return cls(space, config.diloco.inner_steps, config.optim.batch_windows)

    @property
    def num_blocks(self) -> int:
        """Blocks that one phase leases."""
        return blocks_for_phase(
            self.space, inner_steps=self.inner_steps, batch_windows=self.batch_windows
        )

    def windows(self, lease: Lease) -> list[int]:
        """Window ids of the whole lease, in the order in which they are trained on."""
        span = lease.span
        return [w for p in range(span.start, span.stop) for w in self.space.windows(p)]

    def num_steps(self, lease: Lease) -> int:
        """Steps that the lease takes, at most H."""
        return -(-self.space.num_span_windows(lease.span) // self.batch_windows)

    def is_partial(self, lease: Lease) -> bool:
        """Whether the outer step must not put this phase into its momentum.

        So it is where a corpus ends or another replica took the tail, not where a phase was meant
        to be shorter than H.
        """
        full = min(lease.meant or self.num_blocks, self.num_blocks) * self.space.block_windows
        return self.num_steps(lease) < -(-full // self.batch_windows)

    def progress(self, lease: Lease, theta: Theta, *, ahead: int = 0) -> tuple[float, float]:
        """Share of all windows that is in `theta`, and with this lease added.

        `ahead` windows count as in it: they are on their way to the next one.
        """
        total = self.space.total_windows
        start = min(theta.committed_windows + ahead, total)
        end = min(start + self.space.num_span_windows(lease.span), total)
        return start / total, end / total
