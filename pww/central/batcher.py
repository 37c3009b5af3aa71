"""Group commit: calls that come while the disk is busy share the next transaction.

One thread answers; the event loop hands it calls and gets their replies back when they are durable.
So a `synchronous=FULL` commit costs what it costs once for all who wait, and nobody is answered
before it.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence

from pww.errors import PwwError, StateError
from pww.wire import Call, Message

MAX_BATCH = 256
"""Calls of one transaction; more wait for the next, so that the first are not kept for long."""
_Waiting = tuple[Call, "asyncio.Future[Message]"]


class Batcher:
    """Answers calls of one event loop, in order of arrival."""

    def __init__(self, answer: Callable[[Sequence[Call]], list[Message | PwwError]]) -> None:
        """`answer` gives the reply or the refusal of each call; durable when it returns."""
        self._answer = answer
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def answer(self, call: Call) -> Message:
        """The reply to one call.

        Raises:
            PwwError: the refusal, or that the disk refused; the call may be repeated.
        """
        if self._thread is None:  # only the loop's thread comes here
            self._thread = threading.Thread(target=self._run, daemon=True, name="group-commit")
            self._thread.start()
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._queue.put((call, future))
        return await future

    def close(self) -> None:
        """Ends the thread when all that waits is answered."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, more = [first], True
            while more and len(batch) < MAX_BATCH:
                try:
                    waiting = self._queue.get_nowait()
                except queue.Empty:
                    break
                if waiting is None:
                    self._queue.put(None)  # after this batch
                    more = False
                else:
                    batch.append(waiting)
            replies = self._replies([call for call, _ in batch])
            futures = [future for _, future in batch]
            loop = futures[0].get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, futures, replies)

    def _replies(self, calls: Sequence[Call]) -> Sequence[Message | BaseException]:
        try:
            return self._answer(calls)
        except PwwError as why:
            return [why] * len(calls)
        except Exception as why:
            fault = StateError(f"the calls could not be answered: {type(why).__name__}: {why}")
            return [fault] * len(calls)


def _settle(
    futures: Sequence["asyncio.Future[Message]"], replies: Sequence[Message | BaseException]
) -> None:
    """In the loop's thread; a caller who has gone in the meantime is not missed."""
    for future, reply in zip(futures, replies, strict=True):
        if future.done():
            continue
        if isinstance(reply, BaseException):
            future.set_exception(reply)
        else:
            future.set_result(reply)
