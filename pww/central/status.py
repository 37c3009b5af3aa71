"""The run in numbers for people and programs; nothing in it identifies a process to the central."""

from typing import TypedDict

from pww.central.membership import Seat
from pww.central.state import State


class LeaseStatus(TypedDict):
    """A live lease."""

    id: int
    start: int
    stop: int
    watermark: int
    remaining_s: float
    received: bool  # its delta waits for a verdict


class PhaseStatus(TypedDict):
    """What a replica told with its newest delta; all 0 before there is one."""

    steps: int
    seconds: float
    tokens_per_s: float
    loss: float
    drift: float
    staleness: int
    bytes: int


class MemberStatus(TypedDict):
    """A replica. `incarnation` is shortened: in full it lets one speak for the process."""

    replica: str
    incarnation: str
    state: str
    last_seen_s: float  # seconds ago; 0 after a restart until it is heard
    windows_per_s: float
    committed: int
    leases: list[LeaseStatus]
    phase: PhaseStatus


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
    tokens: int  # in theta_outer(round)
    loss: float  # of the newest merge, pooled by tokens; 0 before there is one
    agreement: float  # likewise
    left_s: float  # until the end at the live members' speed; -1: nobody was measured
    pending_deltas: int
    retries: int  # of the central's own carrier, since this process began


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
                phase=_phase_of(seat),
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
        report = state.report
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
            quarantined_blocks=list(state.quarantined_blocks()),
            committed_windows=state.committed_windows,
            total_windows=state.space.total_windows,
            tokens=state.committed_windows * (state.space.window_tokens - 1),
            loss=0.0 if report is None else report.loss,
            agreement=0.0 if report is None else report.agreement,
            left_s=_left_s(state),
            pending_deltas=len(state.pending),
            retries=state.retries,
        )


def _phase_of(seat: Seat) -> PhaseStatus:
    offer = seat.last
    if offer is None:
        return PhaseStatus(
            steps=0, seconds=0.0, tokens_per_s=0.0, loss=0.0, drift=0.0, staleness=0, bytes=0
        )
    told = offer.metrics
    return PhaseStatus(
        steps=told.steps, seconds=told.phase_seconds, tokens_per_s=told.tokens_per_s,
        loss=told.loss, drift=told.drift, staleness=seat.staleness,
        bytes=offer.payload.size_bytes,
    )  # fmt: skip


def _left_s(state: State) -> float:
    per_s = sum(seat.windows_per_s for seat in state.seats.values() if seat.state == "live")
    aside = sum(state.space.num_span_windows(span) for span in state.table.quarantined)
    left = state.space.total_windows - state.committed_windows - aside
    return left / per_s if per_s > 0 else -1.0
