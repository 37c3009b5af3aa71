"""The run in numbers for people and programs; nothing in it identifies a process to the central."""

from typing import TypedDict

from pww.central.state import State

NAMED = 1000


class LeaseStatus(TypedDict):
    """A live lease."""

    id: int
    start: int
    stop: int
    watermark: int
    remaining_s: float
    received: bool  # its delta waits for a verdict


class MemberStatus(TypedDict):
    """A replica. `incarnation` is shortened: in full it lets one speak for the process."""

    replica: str
    incarnation: str
    state: str
    last_seen_s: float  # seconds ago; 0 after a restart until it is heard
    windows_per_s: float
    committed: int
    leases: list[LeaseStatus]


class Coverage(TypedDict):
    """Blocks by state; `committed + leased + unassigned + quarantined == blocks`."""

    blocks: int
    committed: int
    leased: int
    unassigned: int
    quarantined: int


class Status(TypedDict):
    """What `GET /status` says."""

    run: str
    round: int
    merges: int
    state_hash: str
    complete: bool
    members: list[MemberStatus]
    coverage: Coverage
    quarantined_blocks: list[int]  # the first thousand, by position
    committed_windows: int
    total_windows: int
    pending_deltas: int


def status_of(state: State) -> Status:
    """The state as it is now."""
    with state.lock:
        now_s = state.clock.monotonic()
        table = state.table
        members = [
            MemberStatus(
                replica=replica,
                incarnation=seat.member.incarnation[:8],
                state=seat.state,
                last_seen_s=max(0.0, now_s - seat.seen_s),
                windows_per_s=seat.windows_per_s,
                committed=table.committed_by.get(replica, 0),
                leases=[
                    LeaseStatus(
                        id=held.id,
                        start=held.span.start,
                        stop=held.span.stop,
                        watermark=held.watermark,
                        remaining_s=table.remaining_s(held.id, now_s),
                        received=held.pinned != "",
                    )
                    for held in table.leases(replica)
                ],
            )
            for replica, seat in sorted(state.seats.items())
        ]
        return Status(
            run=state.run,
            round=state.round,
            merges=state.round,
            state_hash=state.state_hash,
            complete=table.complete,
            members=members,
            coverage=Coverage(
                blocks=table.num_positions,
                committed=table.committed.total,
                leased=table.leased,
                unassigned=table.unassigned.total,
                quarantined=table.quarantined.total,
            ),
            quarantined_blocks=list(state.quarantined_blocks(NAMED)),
            committed_windows=state.committed_windows,
            total_windows=state.space.total_windows,
            pending_deltas=len(state.pending),
        )
