"""The coordinator: DARL's five calls and the books of deltas over one ledger; torch-free,
thread-safe.

Every call that changes something is one transaction that is on the disk before the call returns,
and every call may be repeated. A restart replays the ledger: live leases and members get
`darl.restore_grace_s`, so that nobody is declared dead for the coordinator's own downtime.
Liveness and deadlines follow the monotonic clock; a stepped wall clock changes labels only.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, cast

from pww.central.deltas import Deltas
from pww.central.leasing import Leasing
from pww.central.ledger import Ledger
from pww.central.membership import Alone, Announcer, Member, Members
from pww.central.state import Staged, State
from pww.central.status import Status, status_of
from pww.central.unsent import Unsent, unsent
from pww.clock import Clock
from pww.config.schema import Darl
from pww.errors import PwwError, StateError
from pww.lease.space import BlockSpace
from pww.wire import (
    Acquire,
    Acquired,
    Call,
    Carriage,
    Done,
    Heartbeat,
    Instruction,
    Leave,
    Message,
    Offer,
    Register,
    Registered,
    Release,
    RoundReport,
    Verdict,
)

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Message)

__all__ = ["Coordinator", "Member", "Members", "Staged"]


def _always() -> bool:
    return True


class Coordinator:
    """One run's coordinator. `members` is told of joins and leaves, restored ones included.

    `merges` says whether somebody merges now: while nobody does, no second site is let in.
    """

    def __init__(
        self,
        ledger: Ledger,
        space: BlockSpace,
        *,
        darl: Darl,
        aggregator_port: int,
        clock: Clock,
        members: Members | None = None,
        staleness_window: int = 2,
        balanced: bool = False,
        limit_mb: int = 0,
        carriage: Carriage | None = None,
        architecture: str = "",
        merges: Callable[[], bool] = _always,
        new_run: Callable[[], str] = partial(secrets.token_hex, 16),
    ) -> None:
        """Opens the run that `ledger` holds, or starts one in an empty ledger.

        Raises:
            StateError: the ledger belongs to another index space.
        """
        self._state = State(
            ledger,
            space,
            clock=clock,
            restore_grace_s=darl.restore_grace_s,
            max_attempts=darl.max_attempts,
            new_run=new_run,
        )
        self._deltas = Deltas(
            self._state, staleness_window=staleness_window, ttl_s=darl.ttl_floor_s
        )
        self._announcer = Announcer(members or Alone())
        self._leasing = Leasing(
            self._state,
            self._deltas,
            self._announcer,
            darl=darl,
            balanced=balanced,
            aggregator_port=aggregator_port,
            limit_mb=limit_mb,
            carriage=carriage,
            architecture=architecture,
            merges=merges,
        )
        self._announcer.deliver()

    # --------------------------------------------------------------------------------- the run

    @property
    def run(self) -> str:
        """Random id of the run, made with its ledger."""
        return self._state.run

    @property
    def model(self) -> str:
        """`model_digest` of what the run trains, "" before the first site has registered."""
        return self._state.model

    @property
    def round(self) -> int:
        """Version of theta_outer."""
        return self._state.round

    @property
    def state_hash(self) -> str:
        """Hash of theta_outer(round), "" before theta(0)."""
        return self._state.state_hash

    def hash_of(self, round_: int) -> str:
        """The state hash of theta_outer of that round, "" if there is no such round."""
        with self._state.lock:
            return self._state.hash_of(round_)

    @property
    def committed_windows(self) -> int:
        """Windows in theta_outer(round)."""
        return self._state.committed_windows

    @property
    def generation(self) -> str:
        """Name of the generation that holds theta_outer(round), "" before theta(0)."""
        return self._state.generation

    def report(self) -> RoundReport | None:
        """What the newest merge did."""
        return self._state.report

    def reports(self, *, after: int = 0) -> tuple[RoundReport, ...]:
        """What each merge after that round did, oldest first."""
        rows = self._state.ledger.rows(
            "SELECT report FROM rounds WHERE round > ? AND report IS NOT NULL ORDER BY round", after
        )
        return tuple(RoundReport.model_validate_json(str(report)) for (report,) in rows)

    def tokens_total(self, round_: int) -> int:
        """All tokens that theta_outer of that round has absorbed."""
        rows = self._state.ledger.rows("SELECT tokens_total FROM rounds WHERE round = ?", round_)
        return cast(int, rows[0][0])

    def unsent(self) -> tuple[Unsent, ...]:
        """Residuals that replicas hold: at the end, what is never sent."""
        return unsent(self._state)

    def exhausted(self) -> bool:
        """Whether every block is committed, or set aside for good."""
        with self._state.lock:
            return self._state.table.complete

    def status(self) -> Status:
        """The run in numbers, as JSON-safe values."""
        return status_of(self._state)

    def live(self) -> tuple[Member, ...]:
        """Members that are heard from."""
        with self._state.lock:
            return tuple(s.member for s in self._state.seats.values() if s.state == "live")

    def silent(self) -> tuple[Member, ...]:
        """Members that are not heard from any more and never said goodbye."""
        with self._state.lock:
            return tuple(s.member for s in self._state.seats.values() if s.state == "gone")

    def expected(self) -> frozenset[str]:
        """Live replicas that hold a started lease whose delta has not come yet."""
        with self._state.lock:
            busy = {h.replica for h in self._state.table.leases() if h.started and not h.pinned}
            return frozenset(m.replica for m in self.live() if m.replica in busy)

    def verify(self) -> None:
        """Checks the lease table's laws.

        Raises:
            LeaseError: one of them is broken.
        """
        with self._state.lock:
            self._state.table.verify()

    # -------------------------------------------------------------------------- the five calls

    def answer(self, calls: Sequence[Call]) -> list[Message | PwwError]:
        """The reply or the refusal of each call, in order; durable together when this returns.

        Raises:
            StateError: the disk refused; none of them happened, all may be repeated.
        """
        try:
            with self._batch():
                replies = [self._answer(call) for call in calls]
                self._leasing.tick_if_due()
                return replies
        except PwwError:
            raise
        except Exception:  # a bug of ours: whose call it is must not be everybody's trouble
            if len(calls) == 1:
                raise
            log.exception("%d calls failed together; answering one by one", len(calls))
            return [reply for call in calls for reply in self._alone(call)]

    def _answer(self, call: Call) -> Message | PwwError:
        try:
            return self._leasing.answer(call)
        except StateError:  # the disk: nobody's call can be answered
            raise
        except PwwError as why:
            return why

    def _alone(self, call: Call) -> list[Message | PwwError]:
        try:
            return self.answer([call])
        except Exception as why:
            log.exception("a %s failed", type(call).__name__)
            return [StateError(f"{type(call).__name__} failed ({type(why).__name__}); see the log")]

    def _one(self, call: Call, kind: type[R]) -> R:
        reply = self.answer([call])[0]
        if isinstance(reply, PwwError):
            raise reply
        assert isinstance(reply, kind)
        return reply

    @contextmanager
    def _batch(self) -> Iterator[None]:
        """One transaction; the news of it go out when it is durable."""
        with self._state.batch():
            yield
        self._announcer.deliver()

    def register(self, message: Register, /) -> Registered:
        """See `Leasing.register`."""
        return self._one(message, Registered)

    def acquire(self, message: Acquire, /) -> Acquired:
        """See `Leasing.acquire`."""
        return self._one(message, Acquired)

    def heartbeat(self, message: Heartbeat, /) -> Instruction:
        """See `Leasing.heartbeat`."""
        return self._one(message, Instruction)

    def release(self, message: Release, /) -> Done:
        """See `Leasing.release`."""
        return self._one(message, Done)

    def leave(self, message: Leave, /) -> Done:
        """See `Leasing.leave`."""
        return self._one(message, Done)

    def tick(self) -> None:
        """Expires leases and marks silent members gone; call it about every second."""
        with self._batch():
            self._leasing.tick()

    def evict(self, replica: str) -> None:
        """The replica's process is known to be dead: a new one need not wait for the detection."""
        with self._batch():
            self._leasing.evict(replica)

    # ---------------------------------------------------------------------------------- deltas

    def receive(self, offer: Offer) -> Verdict | None:
        """See `Deltas.receive`."""
        with self._batch():
            return self._deltas.receive(offer)

    def staged(self) -> tuple[Staged, ...]:
        """Undecided deltas, ordered by replica id, then delta id."""
        with self._state.lock:
            staged = list(self._state.pending.values())
        return tuple(sorted(staged, key=lambda one: (one.offer.replica, one.offer.delta)))

    def reject(self, delta: str, reason: str) -> Verdict:
        """See `Deltas.reject`."""
        with self._batch():
            return self._deltas.reject(delta, reason)

    def close_round(
        self, *, merged: Sequence[str], generation: str, state_hash: str, report: RoundReport
    ) -> None:
        """See `Deltas.close_round`."""
        with self._batch():
            self._deltas.close_round(
                merged=merged, generation=generation, state_hash=state_hash, report=report
            )

    def seed(self, *, generation: str, state_hash: str) -> None:
        """See `Deltas.seed`."""
        with self._batch():
            self._deltas.seed(generation=generation, state_hash=state_hash)

    def verdicts(self, replica: str) -> tuple[Verdict, ...]:
        """The replica's last verdicts, oldest first."""
        return self._deltas.verdicts(replica)
