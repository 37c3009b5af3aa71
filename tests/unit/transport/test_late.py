"""Which pieces are late: by those that arrived, by how they get on, and once each."""

import pytest

from pww.clock import ManualClock
from pww.transport.late import LATE, PIECE_S, Flight, Late


class Peer:
    """A connection that moves at a rate of its own."""

    def __init__(self, *, connected: bool = True) -> None:
        self.share, self.interrupted, self._connected = 0.0, 0, connected

    def moved(self) -> float:
        return self.share

    def interrupt(self) -> bool:
        self.interrupted += self._connected
        return self._connected


class Scene:
    """Pieces under way, and three that took ten seconds each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.late = Late(self.clock)
        self.flights: list[Flight] = []
        before = [self.late.begin(Peer()) for _ in range(3)]
        self.clock.advance(10.0)
        for flight in before:
            self.late.end(flight, moved=True)

    def begin(self, **how: bool) -> Peer:
        peer = Peer(**how)
        self.flights.append(self.late.begin(peer))
        return peer

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.late.interrupt()


def test_who_rests_is_late_once() -> None:
    scene = Scene()
    rests, moves = scene.begin(), scene.begin()
    scene.after(10.0)
    assert rests.interrupted == 0, "others took as long"
    moves.share = 0.9
    scene.after(0.1)
    assert (rests.interrupted, moves.interrupted) == (1, 0)
    assert [flight.interrupted for flight in scene.flights] == [True, False]
    scene.after(0.1)
    assert rests.interrupted == 1


def test_who_crawls_is_late_and_who_is_nearly_there_is_not() -> None:
    """By how long it still takes, against a whole piece on another connection."""
    scene = Scene()
    crawls, nearly = scene.begin(), scene.begin()
    crawls.share, nearly.share = 0.3, 0.4
    scene.after(10.1)  # 23.6 and 15.1 s are left of two that take 20
    assert (crawls.interrupted, nearly.interrupted) == (1, 0)
    nearly.share = 1.0
    scene.after(10.0)
    scene.after(10.0 * LATE - 0.1)
    assert nearly.interrupted == 0, "all went, and the answer may come"
    scene.after(0.2)
    assert nearly.interrupted == 1


def test_nobody_is_late_on_a_link_that_is_slow_for_all() -> None:
    """The last pieces take as long as those before, or a little longer: they go on."""
    scene = Scene()
    peers = [scene.begin() for _ in range(3)]
    for _ in range(150):
        for peer in peers:
            peer.share += 0.1 / 15.0
        scene.after(0.1)
    assert [peer.interrupted for peer in peers] == [0, 0, 0]


@pytest.mark.parametrize("moved", [True, False])
def test_a_few_that_were_quick_make_nobody_late(moved: bool) -> None:
    """All pieces of a small file are under way at once; a fault says nothing about speed."""
    clock = ManualClock()
    late, peers = Late(clock), [Peer() for _ in range(5)]
    flights = [late.begin(peer) for peer in peers]
    clock.advance(1.0)
    late.end(flights[0], moved=True)
    late.end(flights[1], moved=True)
    clock.advance(1000.0)
    late.interrupt()
    assert not any(peer.interrupted for peer in peers), "three are under way, two arrived"
    late.end(flights[2], moved=moved)
    late.interrupt()
    assert [peer.interrupted for peer in peers] == [0, 0, 0, 1, 1]


def test_not_for_less_than_half_a_second() -> None:
    clock = ManualClock()
    late, peer = Late(clock), Peer()
    late.end(late.begin(Peer()), moved=True)  # at once
    late.begin(peer)
    clock.advance(PIECE_S)
    late.interrupt()
    assert peer.interrupted == 0
    clock.advance(PIECE_S / 10)
    late.interrupt()
    assert peer.interrupted == 1


def test_who_cannot_be_interrupted_is_not_said_to_be() -> None:
    """Its fault would be taken for ours, and repeated without a pause."""
    scene = Scene()
    scene.begin(connected=False)
    scene.after(1000.0)
    assert not scene.flights[0].interrupted
