"""Replicas of one process: a group whose ranks are threads, for `pww.replica.circle.Circle`.

The outer step between them is then the code of an allocation, and a study needs one process.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import torch

T = TypeVar("T")
WAIT_S = 600.0


class Done:
    """Work that is over when it is told of."""

    def wait(self) -> bool:
        return True


class Meeting:
    """Where `num` threads lay down what they tell each other."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.slots: list[Any] = [None] * num
        self.barrier = Barrier(num, timeout=WAIT_S)

    def seats(self) -> list["Seat"]:
        return [Seat(self, place) for place in range(self.num)]


class Seat:
    """One thread's end, with the methods of a torch process group that a Circle calls."""

    def __init__(self, meeting: Meeting, place: int) -> None:
        self._meeting, self._place = meeting, place

    def size(self) -> int:
        return self._meeting.num

    def rank(self) -> int:
        return self._place

    def allgather(self, output: Sequence[list[torch.Tensor]], given: list[torch.Tensor]) -> Done:
        self._meeting.slots[self._place] = given[0]
        self._meeting.barrier.wait()
        for into, told in zip(output[0], self._meeting.slots, strict=True):
            into.copy_(told)
        self._meeting.barrier.wait()  # nobody lays down the next before all have read this
        return Done()

    def broadcast(self, tensors: list[torch.Tensor], how: Any) -> Done:
        self._meeting.slots[self._place] = tensors[0]
        self._meeting.barrier.wait()
        if self._place != how.rootRank:
            tensors[0].copy_(self._meeting.slots[how.rootRank])
        self._meeting.barrier.wait()
        return Done()


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Each work in a thread of its own; what they return, or the first fault."""
    with ThreadPoolExecutor(len(works)) as threads:
        futures = [threads.submit(work) for work in works]
        return [future.result() for future in futures]
