"""Who does the work on pieces: this process, or as many worker processes as there are cores.

Small corpora are done here, where `tokenizers` has its own threads. For large ones everything runs
in parallel (unpacking and parsing too), one process a core; where there are fewer pieces than
cores, each process has several threads.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol, TextIO

from pydantic import ValidationError

from pww.config.schema import Data
from pww.data.orders import Job, Said, Task
from pww.data.pieces import Piece
from pww.data.sources import Source
from pww.data.tokenizer import TextTokenizer
from pww.data.work import Advance, Cut, Text, Tokenised, count, tokenise
from pww.errors import DataError, WorkerLost

ALONE_BYTES = 16 << 20
"""Below this many bytes of raw files the start of processes would cost more than it saves."""
STOP_S = 10.0
PACKAGE_PARENT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Order:
    """One piece to count or, with `cut`, to tokenise."""

    number: int
    piece: Piece
    cut: Cut | None = None


Done = tuple[int, Text | Tokenised]
"""An order's number and its result."""


class Workers(Protocol):
    """Does orders in any order."""

    def run(self, orders: Sequence[Order], advance: Advance) -> Iterator[Done]:
        """Numbers and results, as they come.

        Raises:
            DataError: a piece cannot be read or encoded, or a worker died.
            OSError: tokens cannot be written.
        """


def num_processes(workers: int, pieces: Sequence[Piece]) -> int:
    """Processes for these pieces; 0: this one alone."""
    if not workers and sum(piece.size_bytes for piece in pieces) < ALONE_BYTES:
        return 0
    return min(workers or len(os.sched_getaffinity(0)), len(pieces))


@contextmanager
def workers_for(
    source: Source,
    data: Data,
    *,
    project: Path,
    folder: Path,
    tokenizer: Callable[[], TextTokenizer],
) -> Iterator[Workers]:
    """Workers on the pieces of `source`, whose files are to be in `folder`."""
    num = num_processes(data.workers, source.pieces())
    if not num:
        yield _Here(source, folder, tokenizer)
        return
    threads = max(1, len(os.sched_getaffinity(0)) // num)
    job = Job(data=data, project=str(project), folder=str(folder))
    with ExitStack() as stack:
        team = [stack.enter_context(_started(job, threads=threads)) for _ in range(num)]
        yield _Team(team)


class _Here:
    """This process."""

    def __init__(
        self, source: Source, folder: Path, tokenizer: Callable[[], TextTokenizer]
    ) -> None:
        self._source = source
        self._folder = folder
        self._tokenizer = tokenizer

    def run(self, orders: Sequence[Order], advance: Advance) -> Iterator[Done]:
        """One after the other."""
        for order in orders:
            spans = order.piece.spans
            if order.cut is None:
                yield order.number, count(self._source, spans, advance)
            else:
                stem = self._folder / f"{order.number:05d}"
                yield order.number, tokenise(
                    self._source, spans, order.cut,
                    tokenizer=self._tokenizer(), stem=stem, advance=advance,
                )  # fmt: skip


class _Team:
    """Processes, each with a thread here that talks to it."""

    def __init__(self, team: Sequence["_Process"]) -> None:
        self._team = team

    def run(self, orders: Sequence[Order], advance: Advance) -> Iterator[Done]:
        """Whoever is free takes the next one."""
        heard: SimpleQueue[int] = SimpleQueue()
        free: SimpleQueue[_Process] = SimpleQueue()
        for process in self._team:
            free.put(process)

        def one(order: Order) -> Done:
            process = free.get()
            try:
                return order.number, process.do(order, heard.put)
            finally:
                free.put(process)

        # The largest first, so that none is left alone at the end
        line = sorted(orders, key=lambda order: -order.piece.size_bytes)
        pool = ThreadPoolExecutor(len(self._team))
        try:
            left: set[Future[Done]] = {pool.submit(one, o) for o in line}
            while left:
                done, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
                while not heard.empty():
                    advance(heard.get())
                for future in done:
                    yield future.result()
        finally:  # after a fault nobody waits for the others
            pool.shutdown(wait=False, cancel_futures=True)


class _Process:
    """One worker process and the lines to and from it."""

    def __init__(self, process: "subprocess.Popen[str]", out: TextIO) -> None:
        self._process = process
        assert process.stdin is not None
        self._in, self._out = process.stdin, out

    def tell(self, line: str) -> None:
        """Sends a line.

        Raises:
            WorkerLost: the worker is gone.
        """
        try:
            self._in.write(line + "\n")
            self._in.flush()
        except (OSError, ValueError):
            raise self._gone() from None

    def do(self, order: Order, advance: Advance) -> Text | Tokenised:
        """One piece.

        Raises:
            DataError: it cannot be read or encoded.
            WorkerLost: the worker died.
            OSError: its tokens cannot be written.
        """
        spans = tuple((span.file, span.start, span.stop) for span in order.piece.spans)
        self.tell(Task(piece=order.number, spans=spans, cut=order.cut).model_dump_json())
        while True:
            try:
                said = Said.model_validate_json(self._out.readline())
            except (ValidationError, ValueError):
                raise self._gone() from None
            if said.data_fault is not None:
                raise DataError(said.data_fault)
            if said.os_fault is not None:
                number, text, path = said.os_fault
                raise OSError(number, text, path or None)
            done = said.text or said.tokenised
            if done is not None:
                return done
            advance(said.chars)

    def end(self) -> None:
        """Ends the process, whatever it does: only what it said it finished counts."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):  # what it was told last never arrived
            self._in.close()
        self._out.close()

    def _gone(self) -> WorkerLost:
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            code = 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerLost(
            f"a tokenising process ended early ({how}), often for want of memory; start"
            " again, with fewer of them (data.workers=N) if need be: what is tokenised is kept"
        )


@contextmanager
def _started(job: Job, *, threads: int) -> Iterator[_Process]:
    """A worker that has its job; it is gone afterwards."""
    env = os.environ | {
        "RAYON_NUM_THREADS": str(threads),
        # For one thread too: as a thread of its own it allocates apart from Python's strings, and
        # not scattered among them, which saves a sixth of its time (glibc's arenas)
        "TOKENIZERS_PARALLELISM": "true",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")])
        ),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    answers, theirs = os.pipe()
    out = os.fdopen(answers, encoding="utf-8")
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "pww.data.worker", str(theirs)],
            stdin=subprocess.PIPE,
            stdout=2,  # what a library there prints is for people
            pass_fds=(theirs,),
            text=True,
            encoding="utf-8",
            env=env,
        )
    except BaseException:
        out.close()
        raise
    finally:
        os.close(theirs)
    worker = _Process(process, out)
    try:
        worker.tell(job.model_dump_json())
        yield worker
    finally:
        worker.end()
