"""The end of a run: what is published of it, what it covered, when a coordinator alone may go."""

import json
import logging
from pathlib import Path

from pww.central.coordinator import Coordinator
from pww.central.ledger import FILE, Ledger
from pww.central.status import Status
from pww.clock import Clock
from pww.config import paths
from pww.errors import PwwError, StateError

log = logging.getLogger(__name__)
PUBLISHED = Path("final") / "theta.json"
"""In the run's folder, when its last theta is there."""
SPEAK_S = 30.0


def published_round(run: Path) -> int:
    """The round whose theta was published as the run's last one; -1: none."""
    try:
        return int(json.loads((run / PUBLISHED).read_text())["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def coverage_line(status: Status) -> str:
    """What of the corpus is in, and what was set aside."""
    blocks, aside = status["coverage"], status["quarantined_blocks"]
    text = f"{blocks['committed']} of {blocks['blocks']} blocks committed"
    if blocks["quarantined"]:
        named = ", ".join(map(str, aside))
        text += f", {blocks['quarantined']} set aside after too many attempts (blocks {named})"
    return text


def complete(name: str, *, round_: int, status: Status, theta: Path) -> StateError:
    """What is said of a run that has nothing left to do."""
    return StateError(
        f"run {name} is complete: {round_} merges, {coverage_line(status)}, theta in "
        f"{paths.shown(theta)}. Start a new one with run.name=…"
    )


def refuse_complete(run: Path, name: str) -> None:
    """For an aggregator without a coordinator: passes unless nobody will ever come again.

    The books are only looked at; a site that was silent at the end may still come back.

    Raises:
        StateError: the run is complete and everybody has left.
    """
    number = published_round(run)
    if number < 0:
        return
    try:
        ledger = Ledger.read_only(run / "central" / FILE)
    except PwwError:
        return
    try:
        open_ = ledger.rows("SELECT 1 FROM members WHERE state IN ('live', 'gone') LIMIT 1")
        at = ledger.rows("SELECT round FROM run")
    except PwwError:
        return
    finally:
        ledger.close()
    if not open_ and at == [(number,)]:
        raise StateError(
            f"run {name} is complete: {number} merges, theta in "
            f"{paths.shown((run / PUBLISHED).parent)}. Start a new one with run.name=…"
        )


class End:
    """When a coordinator without its own aggregator may go: `reached` is asked again and again."""

    def __init__(self, books: Coordinator, run: Path, *, linger_s: float, clock: Clock) -> None:
        self._books, self._run, self._linger_s, self._clock = books, run, linger_s, clock
        self._alone_s = self._spoke_s = -1.0

    def reached(self, *, attached: bool) -> bool:
        """Every block is in, everybody has left, the aggregator has published theta and ended.

        Who was silent at that moment is waited for a while: it may only be cut off.
        """
        if not self._books.exhausted() or self._books.live():
            self._alone_s = -1.0
            return False
        now_s = self._clock.monotonic()
        if self._alone_s < 0:
            self._alone_s = now_s
        if self._books.silent() and now_s - self._alone_s < self._linger_s:
            return False
        if published_round(self._run) == self._books.round:
            return not attached
        if self._spoke_s < 0 or now_s - self._spoke_s >= SPEAK_S:
            self._spoke_s = now_s
            log.info("every block is in; waiting for the aggregator to publish the final theta")
        return False
