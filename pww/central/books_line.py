"""The aggregator's end of the books' socket: one connection, made again whenever it broke.

`once` is one try, `ask` repeats it until the coordinator answers: every call may be sent again, so
that a coordinator which is killed and started anew is only waited for.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from pww import __version__
from pww.central.books_socket import MAX_BYTES, Channel, Gone, connect
from pww.central.books_wire import GOOD, Attach, Attached, BooksCall, Fault, as_json
from pww.clock import Clock
from pww.errors import InUse, Refused, StateError
from pww.transport.retry import Retry, TryAgain

T = TypeVar("T")
ANSWER_S = 30.0
"""A coordinator whose disk is slower than that is asked again."""
STOP_S = 2.0
ATTACHED = TypeAdapter(Attached)


class Line:
    """One connection to the books at `path`. Thread-safe; calls wait for each other."""

    def __init__(
        self,
        path: Path,
        *,
        process: str,
        clock: Clock,
        stop: threading.Event,
        met: Callable[[Attached], None],
        absent: Callable[[], None] = lambda: None,
        stop_s: float = STOP_S,
    ) -> None:
        """Nothing is sent yet.

        Args:
            path: the socket.
            process: a random id of this process; its lines have the same.
            clock: time.
            stop: ends every wait.
            met: looks at each coordinator that answers; what it raises ends the call.
            absent: called where nobody listens; what it raises ends the call.
            stop_s: how long an answer is waited for after a stop was asked for.
        """
        self._path, self._process, self._clock, self._stop = path, process, clock, stop
        self._met, self._absent, self._stop_s = met, absent, stop_s
        self._lock = threading.Lock()
        self._channel: Channel | None = None

    def ask(self, call: BooksCall, answer: TypeAdapter[T], *, retry: Retry, what: str) -> T:
        """The answer, however long it takes.

        Raises:
            PwwError: the books' own refusal, or what `met` and `absent` raise.
            Stopped: a stop was asked for meanwhile.
        """
        return retry.run(lambda: self.once(call, answer), what=what)

    def once(self, call: BooksCall, answer: TypeAdapter[T]) -> T:
        """The answer of one try.

        Raises:
            TryAgain: there is none; whether the call was obeyed is not known.
            PwwError: as `ask`.
        """
        with self._lock:
            try:
                if self._channel is None:
                    self._connect()
                return self._exchange(call, answer)
            except Gone as why:
                self._hang_up()
                raise TryAgain(str(why)) from why

    def close(self) -> None:
        """Hangs up. A call that waits for its answer is waited for."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connect(self) -> None:
        try:
            connection = connect(self._path)
        except (FileNotFoundError, ConnectionRefusedError) as why:
            self._absent()
            raise TryAgain(
                "no coordinator runs on this run folder: start one with "
                "central.roles=[coordinator] and otherwise the same command"
            ) from why
        except OSError as why:
            raise TryAgain(f"{self._path}: {why.strerror}") from why
        self._channel = Channel(connection, clock=self._clock)
        try:
            attach = Attach(process=self._process, version=__version__)
            self._met(self._exchange(attach, ATTACHED))
        except InUse as why:
            self._hang_up()
            raise TryAgain(str(why)) from why
        except BaseException:
            self._hang_up()
            raise

    def _exchange(self, call: BooksCall, answer: TypeAdapter[T]) -> T:
        """Sends a call and reads its answer.

        Raises:
            Gone: the connection broke.
            Refused: the call is larger than any may be.
            PwwError: the books' refusal.
        """
        assert self._channel is not None
        body = as_json(call)
        if len(body) > MAX_BYTES:
            raise Refused(
                f"{call.call} has {len(body)} bytes, more than {MAX_BYTES}: an offer names its "
                "spans, not its blocks",
                code="too_large",
            )
        self._channel.send(body)
        sent_s = self._clock.monotonic()
        reply = self._channel.receive(wait_s=ANSWER_S, gives_up=lambda: self._gives_up(sent_s))
        try:
            if reply[:1] == GOOD:
                return answer.validate_json(reply[1:])
            raise Fault.model_validate_json(reply[1:]).error()
        except ValidationError as why:
            told = str(why).partition("\n")[0]
            raise StateError(
                f"the coordinator's answer to {call.call} cannot be read ({told}): start both "
                "from one installation of pww"
            ) from why

    def _gives_up(self, sent_s: float) -> bool:
        return self._stop.is_set() and self._clock.monotonic() - sent_s >= self._stop_s
