"""The exchange across sites: invitations bring theta and verdicts, deltas answer them.

One invitation is in hand at most. `pull` uses the one in hand or waits for one; `push` answers it
and waits for the next, which carries the verdict. If it carries none, the answer got lost (the
central was restarted, say) and the same delta is offered again: the central counts a delta id once.
Nothing is ever recomputed.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from pww.clock import Clock
from pww.errors import CentralError, PayloadError, Refused, Stopped
from pww.federation.fleet import FleetSite, Instruction
from pww.federation.fleet_client import NotAdmitted
from pww.federation.records import INVITATION, MB, describe, pack, pack_payload, unpack
from pww.replica.thetas import Thetas
from pww.transport.carrier import Carrier
from pww.transport.exchange import Theta
from pww.wire import Offer, PayloadInfo, Seed, Verdict

log = logging.getLogger(__name__)
REMEMBERED = 32
SPEAK_FIRST_S, SPEAK_MAX_S = 10.0, 120.0
READMIT_S = 5.0
DOUBT_S = 60.0
"""An instruction may have gone to a request that we gave up and the central served late: nobody
would hand it out again."""


class FederatedExchange:
    """Implements `pww.transport.exchange.Exchange` over Flower. Used by one thread of rank 0."""

    def __init__(
        self,
        fleet: FleetSite,
        *,
        run: str,
        replica: str,
        incarnation: str,
        model: str,
        seed: Path,
        folder: Path,
        limit_mb: int,
        inline_mb: int = 0,
        carrier: Carrier | None = None,
        poll_s: float,
        clock: Clock,
        stop: threading.Event,
        reregister: Callable[[], object],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            fleet: the Flower node, whose key was registered.
            run: id of the run that the replica was registered in.
            replica: `site/replica`.
            incarnation: this process life.
            model: `wire.model_digest` of the parameters.
            seed: theta(0) as an fp32 tensor file, in case this replica is asked for it.
            folder: where theta files are put; older ones of ours are deleted.
            limit_mb: largest payload that may travel inside a message.
            inline_mb: largest one that does, where there is a carrier.
            carrier: brings and fetches everything that is larger; None: nothing is.
            poll_s: how often to ask for an instruction.
            clock: time.
            stop: ends every wait.
            reregister: registers again, same identity; for when the aggregator lost this node.
            check: raises if the coordinator has refused this process: then waiting is useless.
        """
        self._fleet, self._clock, self._stop = fleet, clock, stop
        self._run, self._replica, self._incarnation, self._model = run, replica, incarnation, model
        self._seed, self._check = seed, check
        self._limit_mb, self._inline_mb, self._carrier = limit_mb, inline_mb, carrier
        self._poll_s, self._reregister = poll_s, reregister
        self._thetas = Thetas(folder, fetch=None if carrier is None else carrier.get)
        self._held: Instruction | None = None
        self._theta: Theta | None = None  # of the invitation in hand
        self._verdicts: dict[str, Verdict] = {}
        self._staged: frozenset[str] = frozenset()  # deltas that the central holds, by then
        self._inline_bytes = 0  # of payloads beside answers that it took
        self._repeats = 0  # of what neither the fleet nor the carrier repeats by itself

    @property
    def counts(self) -> dict[str, int]:
        """What was done so far: how thetas came, and tries that had to be repeated."""
        came = self._thetas.came
        carried = 0 if self._carrier is None else self._carrier.transfers().retries
        return {
            "retries": self._fleet.num_retries + carried + self._repeats, "theta_whole": came.whole,
            "theta_updates": came.updates, "theta_repairs": came.repairs,
        }  # fmt: skip

    @property
    def sent_bytes(self) -> int:
        """Payload bytes that went up so far; what the central had already is not among them."""
        carried = 0 if self._carrier is None else self._carrier.transfers().bytes_up
        return self._inline_bytes + carried

    def pull(self, newest: int = 0) -> Theta:
        """The newest published theta_outer, of round `newest` or later; seeds theta(0) if asked to.

        Raises:
            Stopped: the stop was asked for while waiting.
            Refused: the central serves another run, or does not want this replica.
        """
        what = f"theta of round {newest}" if newest else "theta"
        pause_s = 0.0
        while True:
            if self._held is None:
                self._await(what)
            assert self._theta is not None
            if self._theta.round >= newest:
                return self._theta
            if pause_s:
                log.warning(
                    "the aggregator is at round %d, round %d is known to exist: asking again",
                    self._theta.round, newest,
                )  # fmt: skip
            self._held = None
            self._fleet.ask_again()
            self._clock.wait(self._stop, pause_s)
            pause_s = READMIT_S

    def push(self, offer: Offer, payload: Path) -> Verdict:
        """Delivers a delta and waits for its verdict. Safe to repeat, also after a restart.

        Raises:
            PayloadError: the payload is over the limit or is not what the offer says.
            Stopped: the stop was asked for while waiting.
            Refused: as `pull`.
        """
        carried = offer.finite and self._is_carried(offer.payload)
        arrays = None
        if offer.finite and not carried:
            arrays = pack_payload(payload, offer.payload, limit_mb=self._limit_mb)
        what = f"the verdict of the delta from round {offer.base_round}"
        while offer.delta not in self._verdicts:
            if self._held is None:
                self._await(what)
                continue  # its verdict may have come with the invitation
            here = offer.delta in self._staged  # before it was started again, say
            if here:
                log.info("the central has this delta already: its payload is not sent again")
            elif carried and not self._carry(payload, offer.payload):
                continue
            told = offer.model_copy(update={"carried": carried or here})
            if not self._reply(self._held, told, None if here else arrays):
                self._repeats += 1
                log.info(
                    "the central does not take this answer any more; the delta is offered again"
                )
        return self._verdicts[offer.delta]

    def close(self) -> None:
        """Ends the node; the invitation in hand stays unanswered. Never raises."""
        self._fleet.close()

    # -------------------------------------------------------------------------------- waiting

    def _await(self, what: str) -> None:
        """Waits until an invitation is in hand, its theta on disk and its verdicts known."""
        start_s = self._clock.monotonic()
        speak_s, every_s = start_s + SPEAK_FIRST_S, SPEAK_FIRST_S
        doubt_s = start_s + DOUBT_S
        while self._held is None:
            if self._stop.is_set():
                raise Stopped(f"stopped while waiting for {what}; nothing durable was lost")
            self._check()
            instruction = self._next()
            if instruction is not None:
                self._take(instruction)
                continue
            now_s = self._clock.monotonic()
            if now_s >= speak_s:
                log.info("waiting for %s: %.0f s", what, now_s - start_s)
                every_s = min(every_s * 2, SPEAK_MAX_S)
                speak_s = now_s + every_s
            if now_s >= doubt_s:
                self._fleet.ask_again()
                doubt_s = now_s + DOUBT_S
            self._clock.wait(self._stop, self._poll_s)

    def _next(self) -> Instruction | None:
        """The next instruction if there is one; registers again where the node is not known."""
        try:
            return self._fleet.receive()
        except NotAdmitted:
            self._repeats += 1
            log.info("the aggregator does not know this node; registering again")
            self._reregister()
            self._clock.wait(self._stop, READMIT_S)
        except PayloadError as fault:
            log.error("an instruction of the central cannot be used: %s", fault)
            self._another()
        return None

    def _another(self) -> None:
        """Has what could not be used sent once more, after a moment."""
        self._repeats += 1
        self._fleet.ask_again()
        self._clock.wait(self._stop, READMIT_S)

    def _take(self, instruction: Instruction) -> None:
        """Puts an invitation in hand, or answers it at once if it asks for theta(0)."""
        try:
            invitation, data = unpack(instruction.content, INVITATION, limit_mb=self._limit_mb)
            if invitation.run != self._run:
                raise Refused(
                    f"the central serves run {invitation.run}, this replica belongs to run "
                    f"{self._run}: start a new run, or give the central its state folder back",
                    code="wrong_run",
                )
            for verdict in invitation.verdicts:
                self._verdicts[verdict.delta] = verdict
            while len(self._verdicts) > REMEMBERED:
                del self._verdicts[next(iter(self._verdicts))]
            self._staged = frozenset(invitation.staged)
            if invitation.kind == "phase":
                self._theta = self._thetas.receive(invitation, data)
                self._held = instruction
                return
        except Refused:
            raise
        except (PayloadError, CentralError) as fault:  # a theta of a round that is over, say
            log.error("an invitation of the central cannot be used: %s", fault)
            self._another()
            return
        self._answer_seed(instruction)

    # -------------------------------------------------------------------------------- sending

    def _reply(self, to: Instruction, message: Offer | Seed, arrays: object) -> bool:
        """Answers an invitation, which is used up by it."""
        self._held = None
        try:
            taken = self._fleet.reply(to, pack(message, arrays))
        except NotAdmitted:
            return False  # the next `receive` deals with it
        if taken and arrays is not None:
            self._inline_bytes += message.payload.size_bytes
        return taken

    def _answer_seed(self, to: Instruction) -> None:
        """Sends theta(0)."""
        info = describe(self._seed, codec="fp32")
        carried = self._is_carried(info)
        seed = Seed(
            run=self._run, replica=self._replica, incarnation=self._incarnation, model=self._model,
            payload=info, carried=carried,
        )  # fmt: skip
        log.info("the central asks this replica for theta(0)")
        arrays = None
        if carried:
            while not self._carry(self._seed, info):
                pass
        else:
            arrays = pack_payload(self._seed, info, limit_mb=self._limit_mb)
        self._reply(to, seed, arrays)

    def _is_carried(self, info: PayloadInfo) -> bool:
        return self._carrier is not None and info.size_bytes > self._inline_mb * MB

    def _carry(self, path: Path, info: PayloadInfo) -> bool:
        """Brings a payload; what the central has already is not sent again. False: try again.

        Raises:
            Refused: the central does not let this replica in.
            Stopped: the stop was asked for meanwhile.
            PayloadError: the file is not what it was.
        """
        assert self._carrier is not None
        self._check()
        try:
            self._carrier.put(path, info)
        except Refused:
            raise
        except CentralError as fault:
            log.error("a payload cannot be brought to the central: %s", fault)
            self._pause()
            self._repeats += 1
            return False
        except OSError as fault:
            raise PayloadError(f"{path} cannot be read: {fault.strerror}") from fault
        return True

    def _pause(self) -> None:
        """Waits before another try.

        Raises:
            Stopped: the stop was asked for meanwhile.
        """
        if self._clock.wait(self._stop, READMIT_S):
            raise Stopped("stopped while moving a payload; nothing durable was lost")
