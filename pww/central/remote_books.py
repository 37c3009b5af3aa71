"""The books of the coordinator's process, as the aggregator's process sees them: `Books` by socket.

What only the merge moves is asked for once and remembered until the merge moves it. A coordinator
that comes back with another run, or behind the round that it had confirmed, is not followed.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar, cast

from pydantic import TypeAdapter

from pww.central.books_line import STOP_S, Line
from pww.central.books_wire import (
    Ask,
    AskReports,
    AskTokens,
    AskVerdicts,
    Attached,
    BooksCall,
    CloseRound,
    Follow,
    Head,
    News,
    Publish,
    Receive,
    Reject,
)
from pww.central.membership import Member
from pww.central.state import Staged
from pww.central.status import Status
from pww.central.unsent import Unsent
from pww.clock import Clock
from pww.errors import StateError
from pww.transport.retry import Retry, Uniform
from pww.wire import Offer, RoundReport, Verdict

T = TypeVar("T")
FIRST_S, MAX_S = 0.05, 0.5
HEAD = TypeAdapter(Head)
NUMBER, YES, NOTHING = TypeAdapter(int), TypeAdapter(bool), TypeAdapter(None)
TEXTS: TypeAdapter[frozenset[str]] = TypeAdapter(frozenset[str])
REPORTS: TypeAdapter[tuple[RoundReport, ...]] = TypeAdapter(tuple[RoundReport, ...])
VERDICT, MAYBE = TypeAdapter(Verdict), TypeAdapter[Verdict | None](Verdict | None)
VERDICTS: TypeAdapter[tuple[Verdict, ...]] = TypeAdapter(tuple[Verdict, ...])
STAGED: TypeAdapter[tuple[Staged, ...]] = TypeAdapter(tuple[Staged, ...])
MEMBERS: TypeAdapter[tuple[Member, ...]] = TypeAdapter(tuple[Member, ...])
UNSENT: TypeAdapter[tuple[Unsent, ...]] = TypeAdapter(tuple[Unsent, ...])
NEWS = TypeAdapter(News)
STATUS: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


class RemoteBooks:
    """`Books` at a socket; every call waits, visibly, for a coordinator that is away."""

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        clock: Clock,
        stop: threading.Event,
        random: Uniform,
        met: Callable[[], None] = lambda: None,
        absent: Callable[[], None] = lambda: None,
    ) -> None:
        """Waits for nobody yet; `attach` does.

        Args:
            path: the socket.
            name: how a person calls the run folder.
            clock: time.
            stop: ends every wait.
            random: for the pauses between tries.
            met: called for every start of the coordinator, before it is asked anything.
            absent: called while nobody listens; what it raises ends the wait.
        """
        self._met, self._lock = met, threading.Lock()
        self._run = self._life = ""
        self._round = 0
        self._head: Head | None = None
        self._path, self._clock, self._absent = path, clock, absent
        self._process = secrets.token_hex(16)
        self._line = self.line(stop)
        self._retry = Retry(
            f"the coordinator of {name}", first_s=FIRST_S, max_s=MAX_S, clock=clock, stop=stop,
            random=random,
        )  # fmt: skip

    def line(self, stop: threading.Event, *, stop_s: float = STOP_S) -> Line:
        """Another connection of this process, for calls that are kept waiting."""
        return Line(
            self._path, process=self._process, clock=self._clock, stop=stop, met=self._welcome,
            absent=self._absent, stop_s=stop_s,
        )  # fmt: skip

    def attach(self) -> None:
        """Returns when a coordinator answers.

        Raises:
            Stopped: a stop was asked for before.
            PwwError: what `met` and `absent` raise, or another version of pww.
        """
        self._now()

    def members(self) -> News:
        """Who the members are now, with the number to follow them from."""
        return self._ask(Follow(life="", seen=0), NEWS, "members")

    def close(self) -> None:
        """Lets go of the coordinator."""
        self._line.close()

    def _welcome(self, told: Attached) -> None:
        """Follows this coordinator, or says why not.

        Raises:
            StateError: it has another run, or lost rounds.
        """
        with self._lock:
            if self._run not in ("", told.run):
                raise StateError(
                    f"the coordinator serves run {told.run} now, this aggregator merged for run "
                    f"{self._run}: start the aggregator anew"
                )
            if told.round < self._round:
                raise StateError(
                    f"the coordinator is at round {told.round} of run {told.run}, it had confirmed "
                    f"round {self._round}: its ledger was restored from an old copy; put the newer "
                    "one back, or start the aggregator anew to go on from there"
                )
            if told.life != self._life:
                self._met()
                self._head = None
            self._run, self._life = told.run, told.life

    # --------------------------------------------------------------------------------- questions

    def _ask(self, call: BooksCall, answer: TypeAdapter[T], what: str = "") -> T:
        return self._line.ask(call, answer, retry=self._retry, what=what or call.call)

    def _about(
        self,
        what: Literal[
            "head", "staged", "expected", "live", "silent", "exhausted", "status", "unsent"
        ],
        answer: TypeAdapter[T],
    ) -> T:
        return self._ask(Ask(what=what), answer, what)

    def _now(self) -> Head:
        """Where the run stands, from memory if only this process can have moved it."""
        with self._lock:
            head = self._head
        if head is None or head.model == "":
            head = self._about("head", HEAD)
            with self._lock:
                self._head, self._round = head, max(self._round, head.round)
        return head

    def _moved(self) -> None:
        with self._lock:
            self._head = None

    @property
    def run(self) -> str:
        """Random id of the run."""
        return self._now().run

    @property
    def model(self) -> str:
        """`model_digest` of what the run trains, "" before the first site has registered."""
        return self._now().model

    @property
    def round(self) -> int:
        """Version of theta_outer."""
        return self._now().round

    @property
    def generation(self) -> str:
        """Name of the generation that holds theta_outer(round), "" before theta(0)."""
        return self._now().generation

    @property
    def state_hash(self) -> str:
        """Hash of theta_outer(round), "" before theta(0)."""
        return self._now().state_hash

    @property
    def committed_windows(self) -> int:
        """Windows in theta_outer(round)."""
        return self._now().committed_windows

    def report(self) -> RoundReport | None:
        """What the newest merge did."""
        return self._now().report

    def reports(self, *, after: int = 0) -> tuple[RoundReport, ...]:
        """What each merge after that round did, oldest first."""
        return self._ask(AskReports(after=after), REPORTS)

    def tokens_total(self, round_: int, /) -> int:
        """All tokens that theta_outer of that round has absorbed."""
        return self._ask(AskTokens(round=round_), NUMBER)

    def verdicts(self, replica: str, /) -> tuple[Verdict, ...]:
        """The replica's last verdicts, oldest first."""
        return self._ask(AskVerdicts(replica=replica), VERDICTS)

    def staged(self) -> tuple[Staged, ...]:
        """Undecided deltas, ordered by replica id, then delta id."""
        return self._about("staged", STAGED)

    def expected(self) -> frozenset[str]:
        """Live replicas that hold a started lease whose delta has not come yet."""
        return self._about("expected", TEXTS)

    def live(self) -> tuple[Member, ...]:
        """Members that are heard from."""
        return self._about("live", MEMBERS)

    def silent(self) -> tuple[Member, ...]:
        """Members that are not heard from any more and never said goodbye."""
        return self._about("silent", MEMBERS)

    def exhausted(self) -> bool:
        """Whether every block is committed, or set aside for good."""
        return self._about("exhausted", YES)

    def status(self) -> Status:
        """The run in numbers, as JSON-safe values."""
        return cast(Status, self._about("status", STATUS))

    def unsent(self) -> tuple[Unsent, ...]:
        """Residuals that replicas hold."""
        return self._about("unsent", UNSENT)

    # ----------------------------------------------------------------------------------- changes

    def tick(self) -> None:
        """Nothing: time passes at the coordinator, which expires and notices silence by itself."""

    def receive(self, offer: Offer, /) -> Verdict | None:
        """See `Books.receive`."""
        return self._ask(Receive(offer=offer), MAYBE)

    def reject(self, delta: str, reason: str, /) -> Verdict:
        """See `Books.reject`."""
        return self._ask(Reject(delta=delta, reason=reason), VERDICT)

    def close_round(
        self, *, merged: Sequence[str], generation: str, state_hash: str, report: RoundReport
    ) -> None:
        """See `Books.close_round`; sent again after a lost answer, it closes one round only."""
        call = CloseRound(
            merged=tuple(merged), generation=generation, state_hash=state_hash, report=report
        )
        try:
            self._ask(call, NOTHING)
        finally:
            self._moved()
        with self._lock:
            self._round = max(self._round, report.round)

    def seed(self, *, generation: str, state_hash: str) -> None:
        """See `Books.seed`."""
        try:
            self._ask(Publish(generation=generation, state_hash=state_hash), NOTHING)
        finally:
            self._moved()
