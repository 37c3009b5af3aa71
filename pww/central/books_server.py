"""The coordinator's end of the books' socket: one aggregator's process at a time, call by call.

Another process is let in when every connection of the one before has ended, so that nothing a dead
one sent is still on its way while the next one looks where the run stands. A call whose answer was
lost is sent again; the books take that, and `close_round` is recognised by what it published.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from pydantic import ValidationError

from pww import __version__
from pww.central.books import Books
from pww.central.books_socket import SLICE_S, Channel, Gone, listen
from pww.central.books_wire import (
    BAD,
    CALL,
    GOOD,
    Ask,
    AskReports,
    AskTokens,
    AskVerdicts,
    Attach,
    Attached,
    BooksCall,
    CloseRound,
    Fault,
    Follow,
    Head,
    News,
    Publish,
    Receive,
    Reject,
    as_json,
)
from pww.central.member_feed import MemberFeed
from pww.clock import Clock
from pww.errors import InUse, PwwError, StateError

log = logging.getLogger(__name__)
ATTACH_S = 5.0
"""A connection says in that time who it is."""
NEWS_S = 5.0
"""How long a follower is kept waiting for news."""
FOREVER_S = float("inf")
MAX_CONNECTIONS = 8


class BooksServer:
    """Answers on the socket at `path` until it is closed."""

    def __init__(self, books: Books, feed: MemberFeed, *, path: Path, clock: Clock) -> None:
        """Listens at once; nobody is answered before `start`.

        Raises:
            StateError: the socket cannot be made.
        """
        self._books, self._feed, self._clock = books, feed, clock
        self._listener = listen(path)
        self._listener.settimeout(0.25)
        self._closing = threading.Event()
        self._lock, self._calling = threading.Lock(), threading.Lock()
        self._process, self._open = "", 0  # who is attached, with how many connections
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Answers from now on."""
        self._spawn(self._accept)

    def close(self) -> None:
        """Hangs up; a call that is being answered comes to its end."""
        self._closing.set()
        self._feed.close()
        for thread in list(self._threads):
            thread.join(5.0)
        self._listener.close()

    def _spawn(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True, name="books")
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as why:  # too many files are open, say
                log.warning("the books' socket: %s; going on", why)
                self._clock.wait(self._closing, 1.0)
                continue
            channel = Channel(connection, clock=self._clock)
            if sum(thread.is_alive() for thread in self._threads) > MAX_CONNECTIONS:
                channel.close()
                continue
            self._spawn(lambda channel=channel: self._serve(channel))  # type: ignore[misc]

    def _serve(self, channel: Channel) -> None:
        """One connection from its first message to its end."""
        attached = False
        try:
            while not self._closing.is_set():
                wait_s = FOREVER_S if attached else ATTACH_S
                body = channel.receive(wait_s=wait_s, gives_up=self._closing.is_set)
                try:
                    call = CALL.validate_json(body)
                except ValidationError as why:
                    fault = Fault.of(StateError(_malformed(why)))
                    channel.send(BAD + as_json(fault))
                    log.warning("the books' socket: %s; hung up", fault.message)
                    return
                if isinstance(call, Attach) == attached:
                    log.warning("the books' socket: %s came out of turn; hung up", call.call)
                    return
                if isinstance(call, Attach):
                    answer, attached = self._attach(call)
                elif isinstance(call, Follow):
                    answer = GOOD + as_json(self._news(call, channel))
                else:
                    answer = self._answer(call)
                channel.send(answer)
        except Gone as why:
            log.debug("a connection to the books ended: %s", why)
        finally:
            if attached:
                self._detach()
            channel.close()

    def _attach(self, call: Attach) -> tuple[bytes, bool]:
        """Lets a process in, alone."""
        with self._lock:
            fault: PwwError
            if call.version != __version__:
                fault = StateError(
                    f"the aggregator is pww {call.version}, its coordinator pww {__version__}: "
                    "start both from one installation"
                )
                return BAD + as_json(Fault.of(fault)), False
            if self._open and self._process != call.process:
                fault = InUse("another aggregator is attached to these books: it must end first")
                return BAD + as_json(Fault.of(fault)), False
            if not self._open:
                log.info("an aggregator is attached")
                self._feed.attach(True)
            self._process, self._open = call.process, self._open + 1
        books = self._books
        told = Attached(life=self._feed.life, run=books.run, round=books.round)
        return GOOD + as_json(told), True

    def _detach(self) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._feed.attach(False)
                log.info("the aggregator is gone; sites wait for it and lose nothing")

    def _news(self, call: Follow, channel: Channel) -> News:
        """What there is to follow, soon; a follower that died meanwhile holds nobody up.

        Raises:
            Gone: it did.
        """
        until_s = self._clock.monotonic() + NEWS_S
        while True:
            news = self._feed.since(call.seen, life=call.life, wait_s=SLICE_S)
            old = news.life == call.life and self._clock.monotonic() < until_s
            if news.notes or not old or self._closing.is_set():
                return news
            if channel.hung_up():
                raise Gone("it hung up")

    def _answer(self, call: BooksCall) -> bytes:
        try:
            with self._calling:  # one given up by its caller may still be under way
                return GOOD + as_json(self._value(call))
        except PwwError as why:
            return BAD + as_json(Fault.of(why))
        except Exception as why:  # a bug of ours
            log.exception("%s failed", call.call)
            fault = StateError(f"{call.call} failed ({type(why).__name__}); see the coordinator")
            return BAD + as_json(Fault.of(fault))

    def _value(self, call: BooksCall) -> object:
        """What the books say; `Attach` and `Follow` are answered elsewhere."""
        books = self._books
        match call:
            case Ask():
                return self._about(call)
            case AskReports(after=after):
                return books.reports(after=after)
            case AskTokens(round=number):
                return books.tokens_total(number)
            case AskVerdicts(replica=replica):
                return books.verdicts(replica)
            case Receive(offer=offer):
                return books.receive(offer)
            case Reject(delta=delta, reason=reason):
                return books.reject(delta, reason)
            case CloseRound():
                self._close_round(call)
                return None
            case Publish(generation=generation, state_hash=state_hash):
                books.seed(generation=generation, state_hash=state_hash)
                return None
            case Attach() | Follow():
                raise AssertionError("not a question to the books")
            case _:
                assert_never(call)

    def _about(self, call: Ask) -> object:
        books = self._books
        match call.what:
            case "head":
                return Head(
                    run=books.run, model=books.model, round=books.round,
                    generation=books.generation, state_hash=books.state_hash,
                    committed_windows=books.committed_windows, report=books.report(),
                )  # fmt: skip
            case "staged":
                return books.staged()
            case "expected":
                return sorted(books.expected())
            case "live":
                return books.live()
            case "silent":
                return books.silent()
            case "exhausted":
                return books.exhausted()
            case "status":
                return books.status()
            case "unsent":
                return books.unsent()
            case _:
                assert_never(call.what)

    def _close_round(self, call: CloseRound) -> None:
        """Closes the round, unless it is this very one that is closed already."""
        books = self._books
        now = (books.round, books.generation, books.state_hash, books.report())
        if now == (call.report.round, call.generation, call.state_hash, call.report):
            return
        books.close_round(
            merged=call.merged, generation=call.generation, state_hash=call.state_hash,
            report=call.report,
        )  # fmt: skip


def _malformed(why: ValidationError) -> str:
    first = why.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part)[:40] for part in first["loc"]) or "body"
    return f"no call of the books: {place}: {first['msg'][:200]}"
