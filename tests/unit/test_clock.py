"""Both clocks: monotonic does not jump, waiting ends by event or by time."""

import threading

import pytest

from pww.clock import ManualClock, SystemClock


def test_a_manual_clock_moves_only_when_told_to() -> None:
    clock = ManualClock(5.0)
    assert [clock.monotonic(), clock.monotonic()] == [5.0, 5.0]
    start_wall = clock.wall()
    clock.advance(2.5)
    assert (clock.monotonic(), clock.wall()) == (7.5, start_wall + 2.5)
    clock.jump_wall(-3600)
    assert (clock.monotonic(), clock.wall()) == (7.5, start_wall + 2.5 - 3600)


def test_waiting_on_a_manual_clock_takes_its_time_unless_the_event_is_set() -> None:
    clock, event = ManualClock(), threading.Event()
    assert clock.wait(event, 3.0) is False
    assert clock.monotonic() == 3.0
    event.set()
    assert clock.wait(event, 3.0) is True
    assert clock.monotonic() == 3.0


def test_an_event_that_time_brings_ends_the_wait() -> None:
    event = threading.Event()

    class Bell(ManualClock):
        def advance(self, seconds: float) -> None:
            super().advance(seconds)
            if self.monotonic() >= 2.0:
                event.set()

    clock = Bell()
    assert [clock.wait(event, 1.0) for _ in range(3)] == [False, True, True]
    assert clock.monotonic() == 2.0


def test_the_system_clock_waits_for_real_and_wakes_at_once() -> None:
    clock, event = SystemClock(), threading.Event()
    start = clock.monotonic()
    assert clock.wait(event, 0.05) is False
    assert clock.monotonic() - start >= 0.05
    threading.Timer(0.02, event.set).start()
    start = clock.monotonic()
    assert clock.wait(event, 60.0) is True
    assert clock.monotonic() - start < 30
    assert clock.wall() == pytest.approx(SystemClock().wall(), abs=5.0)
    assert clock.wall() > 1.7e9, "seconds since 1970"
