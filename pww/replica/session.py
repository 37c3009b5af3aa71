"""One replica's side of the lease protocol: registered, renewed in the background, told the truth.

A thread sends a heartbeat every `heartbeat_s` that renews the held leases; its answer is an order:
a lease that it calls invalid is lost for good. While the central is away the session says so, keeps
its leases and goes on asking. TTLs come from this process' own measurements.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from pww.clock import Clock
from pww.config.schema import Darl
from pww.errors import PwwError, Refused, Stopped, Unreachable
from pww.lease.policy import lease_ttl_s
from pww.lease.space import BlockSpace
from pww.wire import (
    Acquire,
    Acquired,
    Done,
    Exhausted,
    Granted,
    Heartbeat,
    Instruction,
    Lease,
    Leave,
    Register,
    Registered,
    Release,
    Renewal,
    Wait,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

SAY_EVERY_S = 10.0
LEAVE_S = 2.0
"""A goodbye takes no longer than this."""


class CoordinatorPort(Protocol):
    """The five calls: in process (`central.coordinator`) or over HTTP; both may be repeated.

    They raise `Refused`, or `Unreachable` when there was no answer within the port's own deadline.
    """

    def register(self, message: Register, /) -> Registered:
        """First message of a process."""

    def acquire(self, message: Acquire, /) -> Acquired:
        """Asks for one span."""

    def heartbeat(self, message: Heartbeat, /) -> Instruction:
        """I live; renew these."""

    def release(self, message: Release, /) -> Done:
        """Takes leases back uncommitted."""

    def leave(self, message: Leave, /) -> Done:
        """Goodbye."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What the checkpoint of an earlier process of this replica holds; nothing on a first start."""

    run: str = ""
    last_round: int = 0
    leases: tuple[int, ...] = ()
    deltas: tuple[str, ...] = ()  # in the outbox, without a verdict


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
        darl: Darl,
        clock: Clock,
        stop: threading.Event,
        versions: Mapping[str, str],
        claims: Claims = Claims(),
        new_token: Callable[[], str] = partial(secrets.token_hex, 16),
    ) -> None:
        self._port, self._clock, self._stop, self._token = port, clock, stop, new_token
        self._darl, self._replica = darl, replica
        self.incarnation = new_token()
        self._first = Register(
            replica=replica,
            incarnation=self.incarnation,
            node_key=node_key,
            run=claims.run,
            space=space.info(),
            model=model,
            last_round=claims.last_round,
            leases=claims.leases,
            deltas=claims.deltas,
            versions=dict(versions),
        )
        self._lock = threading.Lock()
        self._registered: Registered | None = None
        self._held: dict[int, None] = {}  # lease ids, oldest first
        self._refused: Refused | None = None
        self._round = claims.last_round
        self._phase_s = self._rtt_s = self._windows_per_s = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def run(self) -> str:
        """Id of the run that this session belongs to."""
        assert self._registered is not None, "register first"
        return self._registered.run

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
            try:
                reply = self._ask(lambda: self._port.register(self._first))
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
            self._held.update((lease.id, None) for lease in reply.leases)
        self._thread = threading.Thread(target=self._beat_on, daemon=True, name="heartbeat")
        self._thread.start()
        return reply

    def reregister(self) -> Registered:
        """Registers once more under the same identity: the central lost sight of this process.

        Raises:
            Refused: it was replaced, or the central serves another run now.
            Stopped: a stop was asked for meanwhile.
        """
        with self._lock:
            update = {
                "run": self.run,
                "last_round": self._round,
                "leases": tuple(self._held),
            }
        message = self._first.model_copy(update=update)
        return self._ask(lambda: self._port.register(message))

    def acquire(self, num_blocks: int) -> Lease | None:
        """The next span, None when every block of the corpus is committed; waits visibly.

        Afterwards `round` is the newest one; with the answer None it is the last one of the run.

        Raises:
            Refused: the central does not know this process any more.
            Stopped: a stop was asked for meanwhile.
        """
        asked_s = said_s = self._clock.monotonic()
        while True:
            self.check()
            with self._lock:
                ttl_s = self._ttl_s()
            request = Acquire(
                replica=self._replica,
                incarnation=self.incarnation,
                key=self._token(),
                num_blocks=num_blocks,
                ttl_s=ttl_s,
            )
            reply = self._ask(partial(self._port.acquire, request))
            with self._lock:
                self._round = max(self._round, reply.round)
                if isinstance(reply.answer, Granted):
                    self._held[reply.answer.lease.id] = None
            match reply.answer:
                case Granted():
                    return reply.answer.lease
                case Exhausted():
                    return None
                case Wait(retry_after_s=wait_s):
                    now_s = self._clock.monotonic()
                    if said_s == asked_s or now_s - said_s >= SAY_EVERY_S:
                        said_s = now_s
                        log.info(
                            "no block is free: the rest is at other replicas; waiting for %.0f s",
                            now_s - asked_s,
                        )
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
        """Whether the lease is held here and nobody has said that it is lost."""
        with self._lock:
            return lease in self._held

    def settle(self, lease: int) -> None:
        """The lease's delta has its verdict: it is not renewed any more."""
        with self._lock:
            self._held.pop(lease, None)

    def measured(self, *, phase_s: float, windows_per_s: float) -> None:
        """What the last phase took; TTLs and the central's view follow it."""
        with self._lock:
            self._phase_s, self._windows_per_s = phase_s, windows_per_s

    def beat(self) -> None:
        """Sends one heartbeat and obeys its answer; what keeps it from arriving is logged."""
        with self._lock:
            ttl_s = self._ttl_s()
            message = Heartbeat(
                replica=self._replica,
                incarnation=self.incarnation,
                leases=tuple(Renewal(id=lease, ttl_s=ttl_s) for lease in self._held),
                windows_per_s=self._windows_per_s,
            )
        sent_s = self._clock.monotonic()
        try:
            order = self._port.heartbeat(message)
        except Unreachable as why:
            log.warning("heartbeat not delivered: %s", why)
            return
        except Refused as why:
            if self._over.is_set():
                return  # the goodbye was faster
            log.error("the central refuses this process: %s", why)
            with self._lock:
                self._refused = why
                self._held.clear()
            return
        with self._lock:
            took_s = self._clock.monotonic() - sent_s
            if took_s <= self._darl.heartbeat_s:  # the port repeats: more is an outage
                self._rtt_s = took_s
            self._round = max(self._round, order.round)
            for state in order.leases:
                # one that is not held was settled while the heartbeat was on its way
                if not state.valid and state.id in self._held:
                    del self._held[state.id]
                    log.debug("lease %d is over: merged with its delta, or returned", state.id)

    def leave(self, keep: Collection[int] = ()) -> None:
        """Says goodbye within two seconds or not at all; leases in `keep` are not given back."""
        self._over.set()
        if self._registered is None:
            return
        message = Leave(replica=self._replica, incarnation=self.incarnation, keep=tuple(keep))
        thread = threading.Thread(target=self._say_goodbye, args=(message,), daemon=True)
        thread.start()
        thread.join(LEAVE_S)
        if thread.is_alive():
            log.warning("the central does not answer the goodbye; leases return when they expire")

    def _say_goodbye(self, message: Leave) -> None:
        try:
            self._port.leave(message)
        except PwwError as why:
            log.warning("goodbye not delivered: %s; leases return when they expire", why)

    def _beat_on(self) -> None:
        """The heartbeat thread; only a refusal, a stop or `leave` ends it."""
        assert self._registered is not None
        while not self._clock.wait(self._over, self._registered.heartbeat_s):
            try:
                self.beat()
            except Stopped:
                return
            except PwwError as why:
                log.warning("heartbeat not delivered: %s", why)
            except Exception:
                log.exception("heartbeat failed; the next one follows")
            if self._refused is not None:
                return

    def _ask(self, call: Callable[[], T]) -> T:
        """Repeats one call, with the same key, until the central answers."""
        first_s = self._clock.monotonic()
        while True:
            if self._stop.is_set():
                raise Stopped("stopped while asking the central; nothing durable was lost")
            try:
                return call()
            except Unreachable as why:
                away_s = self._clock.monotonic() - first_s
                log.warning("no answer for %.0f s, trying on: %s", away_s, why)
                self._wait(self._darl.heartbeat_s)

    def _ttl_s(self) -> float:
        return lease_ttl_s(phase_s=self._phase_s, rtt_s=self._rtt_s, floor_s=self._darl.ttl_floor_s)

    def _wait(self, seconds: float) -> None:
        if self._clock.wait(self._stop, seconds):
            raise Stopped("stopped while waiting for the central; nothing durable was lost")
