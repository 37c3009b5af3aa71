"""The run in numbers for people and programs; nothing in it identifies a process to the central."""

from typing import TypedDict

from pww.central.membership import Seat
from pww.central.state import State
from pww.wire import PhaseMetrics

NOTHING = PhaseMetrics(steps=0, tokens=0, loss=0.0, phase_seconds=0.0, tokens_per_s=0.0)
"""Of a replica that has not offered a delta yet."""


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
    device: str  # what one rank computes on
    tflops: float  # of the model, all ranks together
    mfu: float  # of the devices' peak; 0: it is not known
    memory_bytes: int  # the most that a rank had in use
    wait_s: float
    exchange_s: float
    bytes_up: int  # payloads of the process that trained the phase so far, its delta among them
    bytes_down: int
    up_bytes_per_s: float  # while a carrier sent
    down_bytes_per_s: float


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
    told = NOTHING if seat.last is None else seat.last.metrics
    size_bytes = 0 if seat.last is None else seat.last.payload.size_bytes
    seen = told.gauges
    return PhaseStatus(
        steps=told.steps, seconds=told.phase_seconds, tokens_per_s=told.tokens_per_s,
        loss=told.loss, drift=told.drift, staleness=seat.staleness, bytes=size_bytes,
        device=seen.device, tflops=seen.flops_per_s / 1e12, mfu=seen.mfu,
        memory_bytes=seen.memory_bytes, wait_s=seen.wait_seconds,
        exchange_s=seen.exchange_seconds, bytes_up=seen.bytes_up + size_bytes,
        bytes_down=seen.bytes_down, up_bytes_per_s=seen.up_bytes_per_s,
        down_bytes_per_s=seen.down_bytes_per_s,
    )  # fmt: skip


def _left_s(state: State) -> float:
    per_s = sum(seat.windows_per_s for seat in state.seats.values() if seat.state == "live")
    aside = sum(state.space.num_span_windows(span) for span in state.table.quarantined)
    left = state.space.total_windows - state.committed_windows - aside
    return left / per_s if per_s > 0 else -1.0
