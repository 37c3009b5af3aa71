"""The aggregator: deltas in, one merge a round, committed in the same transaction as the round.

A delta is durable and whole before it is booked; a merge is a durable generation before the books'
transaction makes it current. A kill between any two instructions leaves the old round or the new
one: on opening, staged deltas are found again by the books, and what those do not name is swept.
"""

import errno
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import RLock
from typing import Literal, assert_never

from pww.central.beside import to_a_phase
from pww.central.books import Books
from pww.central.disk_refused import disk_refused
from pww.central.final import publish_final
from pww.central.generations import name_of
from pww.central.kept import Kept
from pww.central.merge import merge_finite
from pww.central.payload_store import PayloadStore
from pww.central.published import Published, Shelf
from pww.central.round_report import round_report
from pww.central.rounds_policy import Patience
from pww.central.screening import Checked, Excluded, StagedPayload, inspect, screen
from pww.central.state import Staged
from pww.central.theta0 import require_ours, write_theta0
from pww.clock import Clock
from pww.codec import Codec, codec_named
from pww.config import schema
from pww.errors import LeaseError, PayloadError, Refused
from pww.wire import Invitation, Offer, RoundReport, Seed, Verdict

log = logging.getLogger(__name__)
PASSING = (errno.EMFILE, errno.ENFILE)  # faults of a moment: too many files are open


class Aggregator:
    """Thread-safe; one for each run. `folder` is the central's state folder."""

    def __init__(
        self,
        books: Books,
        *,
        folder: Path,
        diloco: schema.Diloco,
        clock: Clock,
        keep_deltas: bool = False,
        down: Codec | None = None,
        shelf: Shelf | None = None,
        inline_bytes: int = 0,
    ) -> None:
        """Goes on where the ledger stands.

        Args:
            books: of the run, in this process or another.
            folder, clock: the central's state folder, and time.
            diloco: how a round merges.
            keep_deltas: merged payloads stay on disk, for a replay.
            down: encodes what sites update theta by; None: they download theta whole.
            shelf: where files are downloaded that are not beside a message.
            inline_bytes: the largest file that is, if it need not be.

        Raises:
            StateError: the generation that the ledger names is gone or damaged. The bytes of a
                large one are checked beside; then the first call that needs theta raises it.
        """
        self.books, self.clock, self._diloco = books, clock, diloco
        self._lock = RLock()
        self.published = Published(folder, shelf=shelf)
        assert down is None or down.exact_decode, "sites must decode the same bits"
        self._down, self._shelved, self._inline_bytes = down, shelf is not None, inline_bytes
        self._store = PayloadStore(folder / "deltas")
        self._kept = Kept(folder) if keep_deltas else None
        self._checked: dict[str, Checked] = {}  # staged deltas that this process inspected
        self._rejected: list[str] = []  # since the last merge
        self._patience = Patience(clock.monotonic(), quorum=diloco.quorum, grace=diloco.grace)
        self._recover()

    @property
    def needs_seed(self) -> bool:
        """Whether theta(0) is still wanted."""
        return not self.published.is_there

    def needed(self) -> tuple[Path, ...]:
        """Files and folders without which no round can go on."""
        return (self._store.folder, *self.published.needed())

    def publish_final(self, run: Path) -> Path:
        """See `publish_final`: the run is over and its theta is this one.

        Raises:
            StateError: theta(0) has not come yet, or the disk refused.
        """
        with self._lock:
            return publish_final(self.published.current, run)

    def accept_seed(self, seed: Seed, payload: Path) -> None:
        """Publishes theta(0) as round 0, with momentum 0; every later seed is ignored.

        Raises:
            Refused: it is for another run, or of another model than the run's.
            PayloadError: it is damaged, not fp32, not finite, or not of the model that it names.
            StateError: the disk refused; no theta is published.
        """
        with self._lock:
            if not self.needs_seed:
                return
            require_ours(seed, run=self.books.run, model=self.books.model)
            try:
                generation = write_theta0(
                    self.published.generations, payload, info=seed.payload, model=seed.model
                )
                if self._kept is not None:
                    self._kept.keep_theta0(generation.theta)
            except OSError as why:
                raise disk_refused("theta(0)", why) from why
            self.books.seed(generation=generation.name, state_hash=generation.info.state_hash)
            self.published.publish(generation)
            self._patience.published(self.clock.monotonic())

    def invitation(
        self, replica: str, kind: Literal["seed", "phase"], *, holds: int = -1
    ) -> tuple[Invitation, Path | None]:
        """The standing request for one replica, and the file beside it.

        `holds`: the round whose theta this process of the replica has, -1 if that is not known.

        Raises:
            StateError: a phase is asked for before theta(0) has come.
            NotYet: theta is being put where sites fetch it.
        """
        with self._lock:
            books = self.books
            blank = Invitation(
                kind=kind, run=books.run, round=books.round, state_hash="", payload=None,
                committed_windows=books.committed_windows, report=None,
                verdicts=books.verdicts(replica),
            )  # fmt: skip
            match kind:
                case "seed":
                    return blank, None
                case "phase":
                    told = {"report": books.report(), "staged": self._staged_of(replica)}
                    return to_a_phase(
                        blank.model_copy(update=told), self.published, holds=holds,
                        inline_bytes=self._inline_bytes, downloads=self._shelved,
                    )  # fmt: skip
                case _:
                    assert_never(kind)

    # ------------------------------------------------------------------------------ deltas

    def has_staged(self, offer: Offer) -> bool:
        """Whether its payload is here, durable: it need not travel again."""
        return offer.delta in self._staged_of(offer.replica)

    def _staged_of(self, replica: str) -> tuple[str, ...]:
        offers = [one.offer for one in self.books.staged() if one.offer.replica == replica]
        return tuple(one.delta for one in offers if self._store.has(one.delta, one.payload))

    def accept(
        self, offer: Offer, payload: Path | None, *, durable: bool = False
    ) -> Verdict | None:
        """Stages a delta durably and returns its verdict if there is one; the same id counts once.

        `payload` is copied, or linked if it is `durable`; it stays the caller's.

        Raises:
            PayloadError: other bytes than announced came; sending them again may help.
            Refused: theta(0) has not come yet, or the id was used for another delta.
            StateError: the disk refused; the delta was not received.
        """
        with self._lock:
            decided = self.verdict(offer)
            if decided is not None:
                return decided
            if self.needs_seed:
                raise Refused(
                    f"delta {offer.delta} came before theta(0): wait for the seed",
                    code="bad_request",
                )
            booked = any(staged.offer.delta == offer.delta for staged in self.books.staged())
            if booked:  # and if it is another one's id, its payload stays as it is
                self.books.receive(offer)
            if offer.finite and not (booked and self._store.has(offer.delta, offer.payload)):
                if payload is None:
                    raise PayloadError(f"delta {offer.delta} came without payload: send it again")
                try:
                    self._store.put(offer.delta, payload, offer.payload, durable=durable)
                except OSError as why:
                    raise disk_refused(f"the payload of delta {offer.delta}", why) from why
            return self._book(offer, new=not booked)

    def verdict(self, offer: Offer) -> Verdict | None:
        """What became of a delta, if it is one of its replica's last few decided ones."""
        verdicts = self.books.verdicts(offer.replica)
        return next((one for one in verdicts if one.delta == offer.delta), None)

    def _book(self, offer: Offer, *, new: bool) -> Verdict | None:
        """Receives a delta whose payload is durable, and rejects it at once if it is unusable."""
        fault = self._fault(offer) if new and offer.finite else ""
        try:
            verdict = self.books.receive(offer)
        except Refused:
            if new:
                self._drop([offer.delta])
            raise
        if verdict is None and fault:
            verdict = self.books.reject(offer.delta, fault)
        if verdict is not None:
            self._drop([offer.delta])
            if verdict.outcome == "rejected":
                self._note(offer.replica, verdict.reason)
        return verdict

    def _fault(self, offer: Offer) -> str:
        """Why the stored payload of `offer` can never be merged, "" if it can."""
        try:
            self._checked[offer.delta] = inspect(
                self._store.path(offer.delta), offer.payload, self.published.shapes, hashed=False
            )  # its digest was checked while it was copied in
        except PayloadError as fault:
            return str(fault)
        return ""

    # ------------------------------------------------------------------------------ rounds

    def maybe_close(self) -> RoundReport | None:
        """Merges if the round is due; None if it is not, or if nothing of it could be merged.

        Raises:
            StateError: the disk refused; the round before stays current and the deltas staged.
        """
        with self._lock:
            self.published.check()
            staged = self.books.staged()
            if not staged:
                self._patience.forget()
                return None
            return self._close(staged) if self._due(staged) else None

    def _due(self, staged: Sequence[Staged]) -> bool:
        return self._patience.is_due(
            self.clock.monotonic(),
            expected=self.books.expected(),
            delivered={one.offer.replica for one in staged},
            longest_phase_s=max(one.offer.metrics.phase_seconds for one in staged),
        )

    def _close(self, staged: Sequence[Staged]) -> RoundReport | None:
        """Merges the deltas that were staged when the round closed."""
        start_s = self.clock.monotonic()
        base, number = self.published.current, self.books.round + 1
        offers = {one.offer.delta: one.offer for one in staged}
        payloads = [self._payload_of(one) for one in staged]
        # a residual goes out exact where a restart says that theta goes whole from now on
        down = self._down or (codec_named("fp32") if base.residual is not None else None)
        with screen(payloads, self.published.shapes, known=self._checked) as screened:
            try:
                result, screened = merge_finite(
                    base, screened, number=number, generations=self.published.generations,
                    diloco=self._diloco, down=down,
                )  # fmt: skip
            except OSError as why:
                if why.errno in PASSING:
                    log.warning("round %d waits: %s", number, why)
                    return None
                raise disk_refused(f"round {number}", why) from why
        self._exclude(screened.excluded)
        if result is None:
            log.warning("round %d is void: no delta of it could be merged", number)
            self._drop(offers)
            return None
        generation = self.published.generations.open(name_of(number))
        self._keep(number, payloads, result.merged, generation.info.state_hash, down=down)
        report = round_report(
            result, [offers[delta] for delta in result.merged],
            round_=number, rejected=self._rejected,
            bytes_received=sum(one.payload.size_bytes for one in offers.values()),
            merge_seconds=self.clock.monotonic() - start_s, retries=self.published.retried(),
        )  # fmt: skip
        try:
            self.books.close_round(
                merged=result.merged, generation=generation.name,
                state_hash=generation.info.state_hash, report=report,
            )  # fmt: skip
        except LeaseError as why:  # a takeover voided one meanwhile
            log.warning("round %d is merged anew, without what is void by now: %s", number, why)
            self._drop(offers.keys() - {one.offer.delta for one in self.books.staged()})
            return None
        self.published.publish(generation, base=base)
        self._patience.published(self.clock.monotonic())
        self._rejected = []
        self._drop(offers)
        return report

    def _keep(
        self, number: int, payloads: Sequence[StagedPayload], merged: Sequence[str], hash_: str,
        *, down: Codec | None,
    ) -> None:  # fmt: skip
        deltas = [each for delta in merged for each in payloads if each.delta == delta]
        try:
            if self._kept is not None:
                self._kept.keep_round(
                    number, deltas, diloco=self._diloco, state_hash=hash_, down=down
                )
        except OSError as why:
            raise disk_refused(f"round {number}", why) from why

    def _payload_of(self, staged: Staged) -> StagedPayload:
        offer = staged.offer
        return StagedPayload(
            delta=offer.delta, prev=offer.prev, replica=offer.replica,
            path=self._store.path(offer.delta), info=offer.payload, tokens=offer.tokens,
            staleness=staged.staleness, partial=offer.partial,
        )  # fmt: skip

    def _exclude(self, excluded: Sequence[Excluded]) -> None:
        for one in excluded:
            self.books.reject(one.delta, one.reason)
            self._note(one.replica, one.reason)

    # ----------------------------------------------------------------------------- the rest

    def _recover(self) -> None:
        """Goes on where the ledger stands: finds what it names, sweeps what it does not."""
        self.published.recover(self.books.generation, round_=self.books.round)
        if self.published.is_there:
            self._patience.published(self.clock.monotonic())
        for offer in [staged.offer for staged in self.books.staged()]:
            if not self._store.has(offer.delta, offer.payload):
                self._exclude([Excluded(offer.delta, offer.replica, "payload lost at the central")])
        self._store.sweep(keep={staged.offer.delta for staged in self.books.staged()})

    def _note(self, replica: str, reason: str) -> None:
        log.warning("a delta of %s was rejected: %s", replica, reason)
        self._rejected.append(f"{replica}: {reason}")

    def _drop(self, deltas: Iterable[str]) -> None:
        for delta in deltas:
            self._store.drop(delta)
            self._checked.pop(delta, None)
