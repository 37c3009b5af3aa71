"""One session per process life: opened before the first call, renewed in time, never twice."""

import threading

import pytest

from pww.clock import ManualClock
from pww.errors import Refused
from pww.replica.opening import Opening
from pww.transport.site_key import Open, Opened, SiteKey, is_signed
from pww.wire import Leave

A, B = Leave(replica="s/a", incarnation="1" * 32), Leave(replica="s/a", incarnation="2" * 32)


class Central:
    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.seen = clock, list[Open]()
        self.faults: list[Exception] = []

    def post(self, message: Open) -> Opened:
        self.seen.append(message)
        if self.faults:
            raise self.faults.pop(0)
        assert is_signed(message)
        return Opened(token=f"token-{len(self.seen)}", ttl_s=100.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(50.0)


@pytest.fixture
def central(clock: ManualClock) -> Central:
    return Central(clock)


@pytest.fixture
def key(clock: ManualClock) -> SiteKey:
    return SiteKey.new(clock=clock)


def test_it_is_opened_once_and_renewed_before_its_end(clock, central, key) -> None:
    opening = Opening(key, clock=clock)
    assert key.authorization == ""
    for _ in range(3):
        assert opening.header(A, central.post) == "Bearer token-1"
        clock.advance(20.0)
    assert key.authorization == "Bearer token-1"
    clock.advance(15.0)
    assert opening.header(A, central.post) == "Bearer token-2"
    assert [one.incarnation for one in central.seen] == [A.incarnation] * 2
    assert len({one.nonce for one in central.seen}) == 2


def test_another_life_needs_another_session(clock, central, key) -> None:
    opening = Opening(key, clock=clock)
    assert opening.header(A, central.post) == "Bearer token-1"
    assert opening.header(B, central.post) == "Bearer token-2"
    assert central.seen[1].incarnation == B.incarnation


def test_a_header_that_was_refused_is_replaced_but_only_that_one(clock, central, key) -> None:
    opening = Opening(key, clock=clock)
    first = opening.header(A, central.post)
    second = opening.header(A, central.post, refused=first)
    assert second != first
    # the other thread was refused with the old one as well: no third session
    assert opening.header(A, central.post, refused=first) == second


def test_a_wrong_clock_is_signed_again_once(clock, central, key) -> None:
    repeats: list[None] = []
    opening = Opening(key, clock=clock, repeated=lambda: repeats.append(None))

    def post(message: Open) -> Opened:
        key.theirs.offset_s += 100.0 if not central.seen else 0.0  # as a Date header would do
        return central.post(message)

    central.faults = [Refused("signed 100 s behind", code="unauthorised")]
    assert opening.header(A, post) == "Bearer token-2"
    assert central.seen[1].signed_s - central.seen[0].signed_s == pytest.approx(100.0)
    assert len(repeats) == 1


@pytest.mark.parametrize("code", ["unauthorised", "too_many", "wrong_run"])
def test_a_refusal_is_not_repeated(clock, central, key, code: str) -> None:
    opening = Opening(key, clock=clock)
    central.faults = [Refused("no", code=code)]
    with pytest.raises(Refused, match="no"):
        opening.header(A, central.post)
    assert len(central.seen) == 1
    assert key.authorization == ""
    assert opening.header(A, central.post) == "Bearer token-2"


def test_many_threads_open_one_session(clock, central, key) -> None:
    opening, found = Opening(key, clock=clock), []
    threads = [
        threading.Thread(target=lambda: found.append(opening.header(A, central.post)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["Bearer token-1"] * 8
