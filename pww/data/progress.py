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
    """Millions of characters a second."""

    def render(self, task: Task) -> Text:
        """`-` until there is a rate."""
        return Text(f"{task.speed / 1e6:.2f} M chars/s" if task.speed else "-")


@contextmanager
def progress(title: str, *, num_chars: int | None, clock: Clock) -> Iterator[Advance]:
    """Gives a function to call with the characters just done; `num_chars` None: of unknown many."""
    terminal = console()
    if terminal.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), _Rate(), TimeRemainingColumn())
        with Progress(*columns, console=terminal, transient=True) as bar:
            task = bar.add_task(title, total=num_chars)
            yield lambda chars: bar.advance(task, chars)
    else:
        yield _Lines(title, num_chars=num_chars, clock=clock).advance


class _Lines:
    """Says how far it is every few seconds; nothing for short work."""

    def __init__(self, title: str, *, num_chars: int | None, clock: Clock) -> None:
        self._title = title
        self._total = num_chars
        self._clock = clock
        self._start = self._said = clock.monotonic()
        self._done = 0

    def advance(self, chars: int) -> None:
        """Counts, and logs if a line is due."""
        self._done += chars
        now = self._clock.monotonic()
        if now - self._said < LINE_EVERY_S:
            return
        self._said = now
        rate = self._done / (now - self._start)
        if self._total is None:
            done = self._done / 1e6
            _log.info("%s: %.1f M characters, %.2f M/s", self._title, done, rate / 1e6)
            return
        left_s = (self._total - self._done) / rate if rate else float("inf")
        _log.info(
            "%s: %.0f %% of %.1f M characters, %.2f M/s, %.0f s left",
            self._title,
            100 * self._done / self._total,
            self._total / 1e6,
            rate / 1e6,
            left_s,
        )
