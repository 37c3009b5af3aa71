"""Which of the last pieces of a transfer it is quicker to begin again on another connection.

A connection that lost several packets at once rests or crawls for seconds, and in the end all
others wait for it: a new one is as fast as they were. Sooner it would only lose more, and on a link
that is slow for all nobody is late.
"""

import math
import statistics
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from pww.clock import Clock

LATE, RECENT = 2.0, 100
"""A piece is late that will still need so many times what a whole one took, of so many before."""
PIECE_S = 0.5
"""A whole one took as long as this at least: not for less is a connection given up."""


class Watched(Protocol):
    """A connection that moves a piece, as another thread sees it."""

    def moved(self) -> float:
        """The share of the piece that arrived, from 0 to 1."""

    def interrupt(self) -> bool:
        """Ends what it waits for this time; whether there was something."""


@dataclass(slots=True, eq=False)
class Flight:
    """A piece under way."""

    peer: Watched
    since_s: float
    moved_s: float  # when it was last seen to get on
    moved: float = 0.0  # share
    interrupted: bool = False

    def look(self, now_s: float) -> None:
        """Sees how far it is."""
        moved = self.peer.moved()
        if moved != self.moved:
            self.moved, self.moved_s = moved, now_s

    def left_s(self, now_s: float) -> float:
        """How long it will still take as it goes; at least as long as it has rested."""
        if self.moved == 0.0:
            return math.inf
        rate = self.moved / (now_s - self.since_s)
        return max((1.0 - self.moved) / rate, now_s - self.moved_s)


class Late:
    """Watches the pieces under way, and interrupts those that are late, once each. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._flights: list[Flight] = []
        self._took_s: deque[float] = deque(maxlen=RECENT)

    def begin(self, peer: Watched) -> Flight:
        """A piece is under way."""
        now_s = self._clock.monotonic()
        flight = Flight(peer, now_s, now_s)
        with self._lock:
            self._flights.append(flight)
        return flight

    def end(self, flight: Flight, *, moved: bool) -> None:
        """And is so no more."""
        took_s = self._clock.monotonic() - flight.since_s
        with self._lock:
            self._flights.remove(flight)
            if moved:
                self._took_s.append(took_s)

    def interrupt(self) -> None:
        """Ends the tries that are late by now; for when no piece waits any more."""
        now_s = self._clock.monotonic()
        with self._lock:
            for flight in self._flights:
                flight.look(now_s)
            if not self._took_s or len(self._took_s) < len(self._flights):
                return  # a few that were quick say nothing about all the others
            piece_s = max(statistics.median(self._took_s), PIECE_S)
            for flight in self._flights:
                if flight.interrupted or now_s - flight.since_s <= piece_s:
                    continue
                if flight.left_s(now_s) > LATE * piece_s:
                    flight.interrupted = flight.peer.interrupt()
