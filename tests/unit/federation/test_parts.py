"""What people are told while a message of many parts travels."""

import logging

import pytest

from pww.clock import ManualClock
from pww.federation.parts import Parts


def test_a_long_message_tells_how_far_it_is_and_a_short_one_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    with caplog.at_level(logging.INFO, "pww.federation.parts"):
        parts = Parts("sending an answer", total=40, clock=clock)
        for _ in range(20):
            clock.advance(1.0)
            parts.add(5_000_000)
    assert [record.getMessage() for record in caplog.records] == [
        "sending an answer: part 3 of 40, 5.0 MB/s, 37 s left",
        "sending an answer: part 13 of 40, 5.0 MB/s, 27 s left",
    ]
