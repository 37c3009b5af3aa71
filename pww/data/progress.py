"""Progress with rate and ETA: a bar on a terminal, a plain line now and then otherwise."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from pww.clock import Clock
from pww.log import console

LINE_EVERY_S = 5.0

Advance = Callable[[int], None]
_log = logging.getLogger(__name__)


class _Rate(ProgressColumn):
    """Millions of units a second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """`-` until there is a rate."""
        return Text(f"{task.speed / 1e6:.2f} M {self._unit}/s" if task.speed else "-")


@contextmanager
def progress(
    title: str, *, total: int | None, clock: Clock, unit: str = "characters"
) -> Iterator[Advance]:
    """Gives a function to call with the units just done; `total` None: of unknown many."""
    terminal = console()
    if terminal.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            _Rate(unit),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=terminal, transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda done: bar.advance(task, done)
    else:
        yield _Lines(title, total=total, unit=unit, clock=clock).advance


class _Lines:
    """Says how far it is every few seconds; nothing for short work."""

    def __init__(self, title: str, *, total: int | None, unit: str, clock: Clock) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        self._clock = clock
        self._start = self._said = clock.monotonic()
        self._done = 0

    def advance(self, done: int) -> None:
        """Counts, and logs if a line is due."""
        self._done += done
        now = self._clock.monotonic()
        if now - self._said < LINE_EVERY_S:
            return
        self._said = now
        rate = self._done / (now - self._start)
        if not self._total:
            so_far = self._done / 1e6
            _log.info("%s: %.1f M %s, %.2f M/s", self._title, so_far, self._unit, rate / 1e6)
            return
        left_s = (self._total - self._done) / rate if rate else float("inf")
        _log.info(
            "%s: %.0f %% of %.1f M %s, %.2f M/s, %.0f s left",
            self._title,
            100 * self._done / self._total,
            self._total / 1e6,
            self._unit,
            rate / 1e6,
            left_s,
        )
