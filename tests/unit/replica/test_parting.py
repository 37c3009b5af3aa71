"""Ranks end together: nobody is gone while one still says goodbye, nobody waits for the dead."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore, TCPStore

from pww.errors import Stopped, TrainerError
from pww.replica import parting
from pww.replica.blocks import Blocks
from pww.replica.circle import Circle
from pww.replica.groups import Allocation
from pww.replica.parting import Parting

WORLD = 3


def thrice(say: Callable[[], None]) -> None:
    """What is sent first to a store that is gone may still seem to arrive."""
    for _ in range(3):
        say()


def started(works: list[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("fault", [None, Stopped("asked")])
def test_nobody_is_gone_while_one_says_goodbye(fault: BaseException | None) -> None:
    store, told, closed = HashStore(), threading.Event(), threading.Event()
    said, gone = [], []

    def rank(number: int) -> None:
        way = Parting(store, rank=number, world=WORLD)
        if number == 0:
            assert told.wait(60)
        way.wait(type(fault) if fault else None, fault, None)
        said.append(number)
        if number == 2:
            assert closed.wait(60)
        way.end()
        gone.append(number)

    threads = started([lambda n=n: rank(n) for n in range(WORLD)])  # type: ignore[misc]
    for thread in threads[1:]:
        thread.join(0.3)
    assert said == []
    told.set()
    threads[1].join(60)
    threads[0].join(0.3)
    assert sorted(said) == [0, 1, 2]
    assert gone == [1]  # the store may be in rank 0's process: it waits for the last one
    closed.set()
    for thread in threads:
        thread.join(60)
    assert sorted(gone) == [0, 1, 2]


def test_a_fault_waits_a_moment_for_those_that_never_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parting, "FAULT_S", 0.05)
    way = Parting(HashStore(), rank=0, world=2)
    fault = TrainerError("broken")
    way.wait(type(fault), fault, None)
    way.end()  # returns at once: it was alone
    assert "not all ranks of this allocation have ended by themselves: " in caplog.text


def test_one_rank_waits_for_nobody() -> None:
    way = Parting(None, rank=0, world=1)
    way.wait(None, None, None)
    way.end()


def test_a_store_that_is_gone_is_told_of_in_words() -> None:
    """It is in the process of rank 0 of all: what the others then see is no traceback."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore(
        "127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=5),
        wait_for_workers=False,
    )  # fmt: skip
    alone = Circle(None, device=torch.device("cpu"))

    class One:
        rank, world, asked = 0, 2, threading.Event()

    place = Allocation(
        Blocks.of(2, replicas=2), 1, One(), One(), alone, alone, alone,  # type: ignore[arg-type]
        Parting(client, rank=1, world=2), store=client,
    )  # fmt: skip
    place.look()
    assert not One.asked.is_set()
    place.stop_all()
    place.look()
    assert One.asked.is_set()
    del server
    for say in (place.look, place.stop_all):
        with pytest.raises(TrainerError, match=r"^another rank of this allocation is gone; its ow"):
            thrice(say)
    place.parting.wait(None, None, None)
