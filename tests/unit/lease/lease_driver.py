"""Decides and applies in one go, and checks the laws after each change."""

from pww.lease.events import Event, Granted
from pww.lease.held import Held
from pww.lease.table import LeaseTable
from pww.wire import Leased

D, E = "d" * 32, "e" * 32


class Driver:
    """Decide and apply in one go."""

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self.journal: list[Event] = []

    def do(self, events: tuple[Event, ...], now_s: float = 0.0) -> tuple[Event, ...]:
        for event in events:
            self.table.apply(event, now_s)
            self.journal.append(event)
        self.table.verify()
        return events

    def grant(
        self,
        replica: str,
        blocks: int,
        *,
        ttl_s: float = 10.0,
        now_s: float = 0.0,
        ahead: bool = False,
    ) -> Held:
        (event,) = self.table.decide_grant(replica, num_blocks=blocks, ttl_s=ttl_s, ahead=ahead)
        assert isinstance(event, Granted)
        self.do((event,), now_s)
        held = self.table.find(event.lease, replica=replica)
        assert held is not None
        return held

    def pin(self, delta: str, *held: Held) -> tuple[Event, ...]:
        spans = [Leased(lease=h.id, span=h.span) for h in held]
        return self.do(
            self.table.decide_pin(delta, replica=held[0].replica, spans=spans, ttl_s=10.0)
        )

    def now(self, held: Held) -> Held:
        """The lease as it is now."""
        found = self.table.find(held.id, replica=held.replica)
        assert found is not None
        return found

    def commit(self, delta: str, *held: Held) -> None:
        self.pin(delta, *held)
        self.do(self.table.decide_commit(delta))
