"""One replica's side of the lease protocol: registered, renewed in the background, told the truth.

A thread sends a heartbeat every `heartbeat_s` that renews the held leases; its answer is an order:
a lease that it calls invalid is lost for good. The same thread leases the span of the next phase
while one runs, and has it started towards the end, so that no phase begins with a wait. While the
central is away the session says so, keeps its leases and goes on asking; a lease that may have
expired meanwhile is not drawn from. TTLs come from this process' own measurements.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from pww.clock import Clock
from pww.config.schema import Darl
from pww.errors import PwwError, Refused, Stopped, Unreachable
from pww.lease.space import BlockSpace
from pww.replica import port as other_side
from pww.replica.holdings import Holdings, Standing
from pww.replica.port import Claims, CoordinatorPort, Thread
from pww.replica.turns import NONE, Ask, Pace, Turns
from pww.wire import (
    Acquire,
    Exhausted,
    Granted,
    Heartbeat,
    Lease,
    Leave,
    Register,
    Registered,
    Wait,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

SAY_EVERY_S, LEAVE_S = 10.0, 2.0
"""How often a wait is told of, and the longest that a goodbye may take."""


class Session:
    """A replica's membership of a run, from `register` to `leave`; safe to use from two threads."""

    def __init__(
        self,
        port: CoordinatorPort,
        *,
        replica: str,
        node_key: str,
        space: BlockSpace,
        model: str,
        architecture: str = "",
        darl: Darl,
        clock: Clock,
        stop: threading.Event,
        versions: Mapping[str, str],
        claims: Claims = Claims(),
        new_token: Callable[[], str] = partial(secrets.token_hex, 16),
        spawn: Callable[[Callable[[], None]], Thread] = other_side.start_thread,
    ) -> None:
        self._port, self._clock, self._stop, self._token = port, clock, stop, new_token
        self._darl, self._replica, self._spawn = darl, replica, spawn
        self.incarnation = new_token()
        self._first = Register(
            replica=replica, incarnation=self.incarnation, node_key=node_key, run=claims.run,
            space=space.info(), model=model, architecture=architecture,
            last_round=claims.last_round, theta_round=claims.theta_round,
            theta_hash=claims.theta_hash, leases=claims.leases, deltas=claims.deltas,
            residual=claims.residual, versions=dict(versions),
        )  # fmt: skip
        self._lock, self._over = threading.Lock(), threading.Event()
        self._registered: Registered | None = None
        self._held, self._turns = Holdings(), Turns()
        self._refused: Refused | None = None
        self._round, self._pace = claims.last_round, Pace(floor_s=darl.ttl_floor_s)
        self._thread: Thread | None = None

    @property
    def registered(self) -> Registered:
        """What the central answered when this process joined."""
        assert self._registered is not None, "register first"
        return self._registered

    @property
    def run(self) -> str:
        """Id of the run that this session belongs to."""
        return self.registered.run

    @property
    def round(self) -> int:
        """Newest round of the central that was heard of."""
        with self._lock:
            return self._round

    def register(self) -> Registered:
        """Joins the run and starts the heartbeats; waits visibly for a central that is away.

        A replica id that another process holds is waited for once, as long as the central needs to
        notice that a dead process is dead.

        Raises:
            Refused: the central's reason.
            Stopped: a stop was asked for meanwhile.
        """
        waited = False
        while True:
            asked_s = self._clock.monotonic()
            try:
                reply = self._ask(partial(self._port.register, self._first))
                break
            except Refused as why:
                if why.code != "replica_taken" or waited:
                    raise
                waited = True
                wait_s = min(why.retry_after_s or self._darl.detect_s, self._darl.detect_s)
                wait_s += self._darl.heartbeat_s / 2
                log.warning("%s; trying once more in %.1f s", why, wait_s)
                self._wait(wait_s)
        with self._lock:
            self._registered = reply
            self._round = max(self._round, reply.round)
            for lease in reply.leases:
                self._held.take(lease, asked_s=asked_s)
        self._thread = self._spawn(self._beat_on)
        return reply

    def reregister(self) -> Registered:
        """Registers once more under the same identity: the central lost sight of this process.

        Raises:
            Refused: it was replaced, or the central serves another run now.
            Stopped: a stop was asked for meanwhile.
        """
        with self._lock:
            update = {"run": self.run, "last_round": self._round, "leases": tuple(self._held)}
        return self._ask(partial(self._port.register, self._first.model_copy(update=update)))

    def acquire(self, num_blocks: int, *, wait: bool = True) -> Lease | None:
        """The span of the next phase, started; None when every block is in. Waits visibly.

        Mostly it was leased while the phase before ran. Afterwards `round` is the newest one.
        Without `wait` it is None too while other replicas have the rest.

        Raises:
            Refused: the central does not know this process any more.
            Stopped: a stop was asked for meanwhile.
        """
        began_s = said_s = self._clock.monotonic()
        while True:
            self.check()
            lease = self._start_ahead()
            if lease is not None:
                return self._begin(lease, num_blocks)
            answer = self._acquire(Ask(num_blocks, self._token(), self._clock.monotonic()))
            match answer:
                case Granted():
                    return self._begin(answer.lease, num_blocks)
                case Exhausted() | Wait() if not wait:
                    return None
                case Exhausted():
                    other_side.tell_set_aside(answer)
                    return None
                case Wait(retry_after_s=wait_s):
                    now_s = self._clock.monotonic()
                    if said_s == began_s or now_s - said_s >= SAY_EVERY_S:
                        said_s = now_s
                        other_side.tell_waiting(now_s - began_s)
                    self._wait(wait_s)

    def check(self) -> None:
        """Passes while the central knows this process.

        Raises:
            Refused: it said that it does not (any more); waiting for it is useless.
        """
        with self._lock:
            if self._refused is not None:
                raise self._refused

    def holds(self, lease: int) -> bool:
        """Whether the lease is held and nobody has said that it is lost."""
        return self.standing(lease) != "lost"

    def standing(self, lease: int) -> Standing:
        """Whether the phase may draw windows of the lease now; `pause`: ask again soon."""
        with self._lock:
            return self._held.standing(lease, self._clock.monotonic())

    def began(self) -> None:
        """The phase begins its steps now; theta may have been waited for."""
        self._turns.began_s = self._clock.monotonic()

    def ahead(self) -> Lease | None:
        """The next phase's lease, where it is held already; it may still shrink or go."""
        with self._lock:
            return self._held.get(self._turns.ahead)

    def settle(self, lease: int) -> None:
        """The lease's delta has its verdict: it is not renewed any more."""
        with self._lock:
            self._held.drop(lease)
            self._turns.end(lease)

    def measured(self, *, phase_s: float, windows_per_s: float) -> None:
        """What the last phase took; TTLs and the central's view follow it."""
        with self._lock:
            self._pace.phase_s, self._pace.windows_per_s = phase_s, windows_per_s

    def beat(self) -> None:
        """Sends one heartbeat and obeys its answer; what keeps it from arriving is logged."""
        with self._lock:
            now_s, soon_s = self._clock.monotonic(), 2 * self._darl.heartbeat_s
            due = self._turns.due(now_s, phase_s=self._pace.phase_s, soon_s=soon_s)
        try:
            self._renew(start=due)
        except Unreachable as why:
            log.warning("heartbeat not delivered: %s", why)
        except Refused as why:
            if self._over.is_set():
                return  # the goodbye was faster
            log.error("the central refuses this process: %s", why)
            with self._lock:
                self._refused = why
                self._held.clear()

    def leave(self, keep: Collection[int] = ()) -> None:
        """Says goodbye within two seconds or not at all; leases in `keep` are not given back."""
        self._over.set()
        if self._registered is None:
            return
        message = Leave(replica=self._replica, incarnation=self.incarnation, keep=tuple(keep))
        other_side.say_goodbye(self._port, message, within_s=LEAVE_S)

    def _beat_on(self) -> None:
        """The heartbeat thread; only a refusal, a stop or `leave` ends it."""
        while not self._clock.wait(self._over, self.registered.heartbeat_s):
            try:
                self.beat()
                self._take_ahead()
            except Stopped:
                return
            except PwwError as why:
                log.warning("heartbeat not delivered: %s", why)
            except Exception:
                if not self._over.is_set():  # the goodbye closes what it uses
                    log.exception("heartbeat failed; the next one follows")
            if self._refused is not None:
                return

    # ----------------------------------------------------------------------------------- leases

    def _begin(self, lease: Lease, num_blocks: int) -> Lease:
        """Notes that a phase over the lease begins now."""
        with self._lock:
            self._turns.begin(lease.id, num_blocks=num_blocks, now_s=self._clock.monotonic())
        return lease

    def _acquire(self, ask: Ask, *, ahead: bool = False) -> Granted | Wait | Exhausted:
        """One request; unless it is for the phase ahead, it is repeated until it is answered."""
        with self._lock:
            ttl_s = self._pace.ttl_s
        request = Acquire(
            replica=self._replica, incarnation=self.incarnation, key=ask.key,
            num_blocks=ask.num_blocks, ttl_s=ttl_s, ahead=ahead,
        )  # fmt: skip
        call, known = partial(self._port.acquire, request), self.round
        reply = call() if ahead else self._ask(call)
        with self._lock:
            self._heard(reply.round, known=known)
            if isinstance(reply.answer, Granted):
                self._held.take(reply.answer.lease, asked_s=ask.first_s)
        return reply.answer

    def _take_ahead(self) -> None:
        """Leases the next phase's span while one runs, if there is one."""
        with self._lock:
            ask = self._turns.wanted() if self._darl.ahead else None
            if ask is None:
                return
            if not ask.key:  # the same key and time until there is an answer
                ask.key, ask.first_s = self._token(), self._clock.monotonic()
        try:
            answer = self._acquire(ask, ahead=True)
        except Unreachable as why:
            log.debug("no span ahead yet: %s", why)
            return
        with self._lock:
            granted = answer.lease.id if isinstance(answer, Granted) else NONE
            self._turns.answered(ask, lease=granted)

    def _start_ahead(self) -> Lease | None:
        """What is left of the span that was leased ahead, started; None: there is none."""
        asked = False
        while True:
            with self._lock:
                lease = self._held.get(self._turns.ahead)
                if lease is None:
                    self._turns.ahead = NONE
                    return None
                if self._held.standing(lease.id, self._clock.monotonic()) == "draw":
                    return lease
            if asked:  # the answer came after the lease's end
                self._wait(self._darl.heartbeat_s)
            self._ask(partial(self._renew, start=lease.id))
            asked = True

    def _renew(self, *, start: int) -> None:
        """One heartbeat, and what its answer orders."""
        with self._lock:
            asked = self._held.renewals(ttl_s=self._pace.ttl_s, start=start)
            known, rate = self._round, self._pace.windows_per_s
            who = {"replica": self._replica, "incarnation": self.incarnation}
            message = Heartbeat(**who, leases=asked, windows_per_s=rate)
        sent_s = self._clock.monotonic()
        order = self._port.heartbeat(message)
        with self._lock:
            took_s = self._clock.monotonic() - sent_s
            if took_s <= self._darl.heartbeat_s:  # the port repeats: more is an outage
                self._pace.rtt_s = took_s
            self._heard(order.round, known=known)
            for lease in self._held.obey(order, asked, asked_s=sent_s):
                log.debug("lease %d is over: merged with its delta, or returned", lease)

    def _heard(self, round_: int, *, known: int) -> None:
        """Takes note of the central's round; `known` it was when it was asked."""
        if round_ < known:
            self._refused = other_side.went_back(self.run, round_, known=known)
            self._held.clear()
            raise self._refused
        self._round = max(self._round, round_)

    def _ask(self, call: Callable[[], T]) -> T:
        """Repeats one call, with the same key, until the central answers."""
        first_s = self._clock.monotonic()
        while True:
            if self._stop.is_set():
                raise Stopped("stopped while asking for leases; nothing durable was lost")
            try:
                return call()
            except Unreachable as why:
                away_s = self._clock.monotonic() - first_s
                log.warning("no answer for %.0f s, trying on: %s", away_s, why)
                self._wait(self._darl.heartbeat_s)

    def _wait(self, seconds: float) -> None:
        if self._clock.wait(self._stop, seconds):
            raise Stopped("stopped while waiting for a lease; nothing durable was lost")
