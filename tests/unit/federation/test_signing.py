"""A site's signature is accepted by Flower's own check whatever this machine's clock says."""

import datetime
import logging
from base64 import b64decode
from email.utils import format_datetime, formatdate
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from pww.clock import ManualClock
from pww.federation.signing import Signer
from pww.transport.site_key import SiteKey


class Central:
    """Answers with its own time, and remembers what it was sent."""

    def __init__(self, clock: ManualClock, ahead_s: float, *, date: str = "") -> None:
        self.clock, self.ahead_s, self.date = clock, ahead_s, date
        self.ages: list[float] = []

    def call(self, signer: Signer) -> None:
        request = httpx.Request("POST", "http://x")
        signer.intercept(SimpleNamespace(request=request), self._answer)

    def _answer(self, context: Any) -> httpx.Response:
        headers = context.request.headers
        stamp = headers["flwr-timestamp"]
        key = bytes_to_public_key(b64decode(headers["flwr-public-key"]))
        assert verify_signature(key, stamp.encode(), b64decode(headers["flwr-signature"]))
        now_s = self.clock.wall() + self.ahead_s
        self.ages.append(now_s - datetime.datetime.fromisoformat(stamp).timestamp())
        when = datetime.datetime.fromtimestamp(int(now_s), tz=datetime.UTC)
        return httpx.Response(
            200, headers={"date": self.date or format_datetime(when, usegmt=True)}
        )


def is_accepted(age_s: float) -> bool:
    return -5 < age_s < 305


@pytest.mark.parametrize("ahead_s", [0.0, 1.0, -2.0, 4.0, -10.0, 400.0, -3600.0, 40000000.0])
def test_a_wrong_clock_is_corrected_after_one_answer(
    ahead_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(1000.3)
    signer = Signer.new(clock=clock)
    central = Central(clock, ahead_s)
    with caplog.at_level(logging.WARNING, "pww.transport.their_clock"):
        for _ in range(5):
            central.call(signer)
            clock.advance(0.7)
    assert all(is_accepted(age) for age in central.ages[1:])
    warned = [record.getMessage() for record in caplog.records]
    if abs(ahead_s) < 3:
        assert warned == []
        assert signer.offset_s == 0.0
    else:
        word = "behind" if ahead_s > 0 else "ahead of"
        assert len(warned) == 1
        assert f"s {word} the central's; corrected here" in warned[0]


def test_a_clock_that_jumps_is_followed() -> None:
    clock = ManualClock(1000.0)
    signer = Signer.new(clock=clock)
    central = Central(clock, 0.0)
    central.call(signer)
    clock.jump_wall(500.0)
    central.ahead_s = -500.0
    central.call(signer)
    central.call(signer)
    assert not is_accepted(central.ages[1])
    assert is_accepted(central.ages[2])


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Foo"])
def test_an_answer_without_a_date_changes_nothing(date: str) -> None:
    clock = ManualClock(1000.0)
    key = SiteKey.new(clock=clock)
    key.theirs.measure(date, asked_s=key.theirs.asked_s())
    assert Signer(key).offset_s == 0.0


def test_a_central_that_was_held_up_is_no_wrong_clock(caplog: pytest.LogCaptureFixture) -> None:
    """Its header is as old as the answer took; only what is beyond that is an error of a clock."""
    clock = ManualClock(1000.0)
    theirs = SiteKey.new(clock=clock).theirs
    asked_s, date = theirs.asked_s(), formatdate(clock.wall(), usegmt=True)
    clock.advance(72.0)
    theirs.measure(date, asked_s=asked_s)
    assert theirs.offset_s == 0.0
    assert "clock" not in caplog.text
    theirs.measure(date, asked_s=theirs.asked_s())
    assert theirs.offset_s == pytest.approx(-72.0, abs=1.0)


def test_the_session_of_the_key_goes_with_every_call() -> None:
    key = SiteKey.new(clock=ManualClock(1000.0))
    seen = []

    def answer(context: Any) -> httpx.Response:
        seen.append(context.request.headers.get("authorization"))
        return httpx.Response(200)

    for authorization in ("", "Bearer x", "Bearer y"):
        key.authorization = authorization
        request = httpx.Request("POST", "http://x")
        Signer(key).intercept(SimpleNamespace(request=request), answer)
    assert seen == [None, "Bearer x", "Bearer y"]
