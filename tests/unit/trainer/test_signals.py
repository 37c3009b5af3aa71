"""The wish to stop: noted before and after the ranks exist, and never by a forked child."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from pww.trainer import signals

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_each_signal_asks_and_only_the_queues_asks_for_a_requeue(number: signal.Signals) -> None:
    signals.defer()
    asked = threading.Event()
    signals.listen(asked)
    assert not asked.is_set()
    signal.raise_signal(number)
    assert asked.is_set()
    assert signals.queue_asked() == (number == signal.SIGUSR2)


def test_what_the_queue_says_early_is_kept() -> None:
    signals.defer()
    signal.raise_signal(signal.SIGUSR2)
    asked = threading.Event()
    signals.listen(asked)
    assert asked.is_set()
    assert signals.queue_asked()


def test_a_forked_child_runs_no_handler_and_can_be_ended() -> None:
    signals.defer()
    asked = threading.Event()
    signals.listen(asked)
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGUSR2)  # ignored: its parent ends it
        os.write(say, b"noted" if asked.is_set() else b"alive")
        signal.pause()
        os._exit(0)
    assert os.read(ready, 5) == b"alive"
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not asked.is_set()
