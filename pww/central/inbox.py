"""What the federation hands in and asks for, answered by books and merge; writes global metrics."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from pww.central.aggregator import Aggregator
from pww.central.books import Books
from pww.central.membership import Member
from pww.clock import Clock
from pww.errors import PayloadError, Refused, StateError
from pww.metrics import Metrics, perplexity, set_columns
from pww.wire import Invitation, Offer, PayloadInfo, RoundReport, Seed, Verdict

log = logging.getLogger(__name__)
IDLE_LINE_S, SWEEP_S = 30.0, 60.0
NOTED_BYTES = 8 << 20
"""How much of metrics.jsonl is looked at when a central starts: the rows of `MANY` rounds."""
MANY = 1000
"""How many rounds back rows are looked for; every delta's base is younger by far."""


class Carried(Protocol):
    """Where payloads are that did not come beside a message: each whole, durable and verified."""

    @property
    def retries(self) -> int:
        """Requests so far that were repeats."""

    def take(self, info: PayloadInfo) -> Path | None:
        """One for our own use, until `discard`; None if it is not there.

        Raises:
            NotYet: it is being fetched.
            OSError: there is no room for it here.
        """

    def discard(self, info: PayloadInfo) -> None:
        """It is not needed any more; nothing happens if there is none."""

    def sweep(self) -> None:
        """Removes what nobody will ever ask for; called now and then."""


class CentralInbox:
    """The one object that the server loop over Flower talks to.

    Counts come from the ledger, whoever committed the rounds. `noted` are the last rows that the
    processes before this one wrote (`NOTED_BYTES` of them): a round that was committed just before
    a death, or whose row the disk refused, gets its row now. `folders` are watched: without them
    nothing that comes in could be kept.
    """

    def __init__(
        self,
        books: Books,
        aggregator: Aggregator,
        metrics: Metrics,
        *,
        clock: Clock,
        address: str,
        linger_s: float = 0.0,
        noted: Sequence[Mapping[str, object]] = (),
        folders: Sequence[Path] = (),
        carried: Carried | None = None,
    ) -> None:
        self._books, self._merger, self._metrics = books, aggregator, metrics
        self._clock, self._address, self._folders = clock, address, tuple(folders)
        self._carried, self._swept_s = carried, clock.monotonic()
        self._said_s = clock.monotonic()
        self._linger_s, self._alone_s = linger_s, -1.0
        self._evaluated = {_round(row) for row in noted if row.get("split") == "eval"}
        written = {_round(row) for row in noted if row.get("split") == "outer"}
        known = 1 if books.round <= MANY else min(written, default=1)
        for report in books.reports(after=max(known - 1, books.round - MANY)):
            if report.round not in written:
                self._write(report)

    def live(self) -> tuple[Member, ...]:
        """Members that are heard from."""
        return self._books.live()

    @property
    def round(self) -> int:
        """The round that is current."""
        return self._books.round

    def needs_seed(self) -> bool:
        """Whether theta(0) is still wanted."""
        return self._merger.needs_seed

    def invitation(
        self, replica: str, kind: Literal["seed", "phase"], *, holds: int = -1
    ) -> tuple[Invitation, Path | None]:
        """The message for one replica, and the payload beside it.

        Raises:
            NotYet: theta, or what leads to it, is not yet where sites fetch it.
        """
        return self._merger.invitation(replica, kind, holds=holds)

    def accept_seed(self, seed: Seed, payload: Path | None) -> None:
        """theta(0); the first one wins, a late one is removed.

        Raises:
            PayloadError: it was announced as carried and is not there.
            NotYet: it is being fetched.
        """
        if not self._merger.needs_seed:
            self._done_with(seed.payload, payload)
            return
        path = self._carrying(seed.payload) if payload is None else payload
        self._merger.accept_seed(seed, path)
        self._done_with(seed.payload, payload)
        log.info("theta(0) came from %s", seed.replica)

    def accept_offer(self, offer: Offer, payload: Path | None) -> Verdict | None:
        """A delta; its verdict if there is one already.

        Raises:
            PayloadError: its payload was announced as carried and is not there.
            NotYet: it is being fetched.
        """
        path = payload
        named = offer.carried and self._merger.verdict(offer) is None
        if named and not self._merger.has_staged(offer):
            path = self._carrying(offer.payload)
        try:
            verdict = self._merger.accept(offer, path, durable=offer.carried)
        except (Refused, PayloadError):  # it is no use, or damaged: the site brings it again
            if named and path is not None:
                self._done_with(offer.payload, payload)
            raise
        if named or payload is not None:  # else it names what may be another one's
            self._done_with(offer.payload, payload)  # the aggregator has its own, durable
        told = offer.metrics
        if verdict is not None and verdict.outcome == "rejected":
            return verdict  # it may be of another run, or of a round that never was
        if told.held_out_loss >= 0 and offer.base_round not in self._evaluated:
            self._evaluated = {n for n in self._evaluated if n > offer.base_round - MANY}
            self._evaluated.add(offer.base_round)
            self._metrics.row(
                "eval", step=offer.base_round, round=offer.base_round,
                tokens=self._books.tokens_total(offer.base_round),
                loss=told.held_out_loss, perplexity=perplexity(told.held_out_loss),
                held_out_tokens=told.held_out_tokens, **set_columns(told.held_out_sets),
            )  # fmt: skip
        return verdict

    def _carrying(self, info: PayloadInfo) -> Path:
        """Where a payload is that another carrier brought."""
        path = None if self._carried is None else self._carried.take(info)
        if path is None:
            raise PayloadError(
                f"payload {info.digest} was announced as carried and is not here: send it again"
            )
        return path

    def _done_with(self, info: PayloadInfo, payload: Path | None) -> None:
        if payload is not None:
            payload.unlink(missing_ok=True)
        elif self._carried is not None:
            self._carried.discard(info)

    def tick(self) -> None:
        """Time passes: leases expire, silent members are gone, a due round closes.

        Raises:
            StateError: the state folder is gone or damaged, or the disk refused.
        """
        self._watch()
        self._sweep()
        self._books.tick()
        self._say_idle()
        report = self._merger.maybe_close()
        if report is not None:
            self._write(report)
            self._log(report)

    def _sweep(self) -> None:
        now_s = self._clock.monotonic()
        if self._carried is not None and now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            self._carried.sweep()

    def _watch(self) -> None:
        for path in (*self._folders, *self._merger.needed()):
            if not path.exists():
                raise StateError(
                    f"{path} is gone while the central runs: what it received can be kept no more. "
                    "Put the state folder back from a copy and start the central again, or start a "
                    "new run with run.name=…"
                )

    def _say_idle(self) -> None:
        """A line every now and then while no site is there."""
        now_s = self._clock.monotonic()
        if self._books.live():
            self._said_s = now_s
        elif now_s - self._said_s >= IDLE_LINE_S:
            self._said_s = now_s
            log.info(
                "no site is here; one joins with: python -m pww.train central.url=%s",
                self._address,
            )

    def finished(self) -> bool:
        """Every block is in, and everybody who took part has been told and has left.

        Who was silent at that moment is waited for a while: it may only be cut off.
        """
        if not self._books.exhausted() or self._books.live():
            self._alone_s = -1.0
            return False
        silent = self._books.silent()
        now_s = self._clock.monotonic()
        if silent and self._alone_s < 0:
            self._alone_s = now_s
            log.info(
                "every block is in; waiting %.0f s for %s, which did not say goodbye",
                self._linger_s, ", ".join(member.replica for member in silent),
            )  # fmt: skip
        return not silent or now_s - self._alone_s >= self._linger_s

    def _write(self, report: RoundReport) -> None:
        row = report.model_dump(mode="json")
        loss, tokens = row.pop("loss"), row.pop("tokens")
        del row["round"]
        row |= {f"mfu_{one['device']}": one["mfu"] for one in row.pop("mfu")}
        self._metrics.row(
            "outer", step=report.round, round=report.round,
            tokens=self._books.tokens_total(report.round), loss=loss, merge_tokens=tokens, **row,
        )  # fmt: skip

    def _log(self, report: RoundReport) -> None:
        coverage = self._books.status()["coverage"]
        log.info(
            "round %d: merged %s  loss %.4f  agreement %.2f  %d of %d blocks committed",
            report.round, ", ".join(report.merged), report.loss, report.agreement,
            coverage["committed"], coverage["blocks"],
        )  # fmt: skip


def _round(row: Mapping[str, object]) -> int:
    """A row's round; 0, which no merge has, if somebody wrote nonsense."""
    number = row.get("round")
    return number if isinstance(number, int) else 0
