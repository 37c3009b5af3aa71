"""Which lease a replica's phase runs on, which is next, and its pace. Pure: time is an argument.

The next span is asked for once a phase, while it runs, and is started towards its end: until then
an idle replica may still get it.
"""

from dataclasses import dataclass

from pww.lease.policy import lease_ttl_s

NONE = -1
"""No lease."""


@dataclass(slots=True)
class Ask:
    """A request for a lease: its key, and when it was first sent with it."""

    num_blocks: int
    key: str = ""
    first_s: float = 0.0


class Turns:
    """The lease in work and the one ahead. Not thread-safe."""

    def __init__(self) -> None:
        self.running = self.ahead = NONE
        self.began_s = 0.0
        self._ask: Ask | None = None  # for the span ahead

    def begin(self, lease: int, *, num_blocks: int, now_s: float) -> None:
        """A phase begins on `lease`; the next one will want as many blocks."""
        self.running, self.began_s = lease, now_s
        self.ahead = NONE if self.ahead == lease else self.ahead
        self._ask = Ask(num_blocks)

    def end(self, lease: int) -> None:
        """The lease is over, merged or not."""
        if self.running == lease:
            self.running = NONE

    def wanted(self) -> Ask | None:
        """The request for the span ahead that is still to be answered, if a phase runs."""
        return self._ask if self.running != NONE and self.ahead == NONE else None

    def answered(self, ask: Ask, *, lease: int) -> None:
        """What became of it; there may be nothing to lease (`NONE`)."""
        if self._ask is ask:
            self._ask = None
        if lease != NONE:
            self.ahead = lease

    def due(self, now_s: float, *, phase_s: float, soon_s: float) -> int:
        """The lease to start now: the phase, which takes about `phase_s`, ends in `soon_s`."""
        ending = phase_s > 0 and now_s - self.began_s >= phase_s - soon_s
        return self.ahead if self.running != NONE and ending else NONE


@dataclass(slots=True)
class Pace:
    """What this process measured of itself and of the way to the central; 0 before it did."""

    floor_s: float
    phase_s: float = 0.0
    rtt_s: float = 0.0
    windows_per_s: float = 0.0

    @property
    def ttl_s(self) -> float:
        """How long a lease should live without a heartbeat."""
        return lease_ttl_s(phase_s=self.phase_s, rtt_s=self.rtt_s, floor_s=self.floor_s)
