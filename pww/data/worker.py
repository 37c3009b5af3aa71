"""A process that works on pieces: one JSON line in for each task, JSON lines out.

    python -m pww.data.worker FD      started by pool.py, ends when its standard input does

In: a `Job` first, then a `Task` a line. Out, to the descriptor FD: `Said` lines; each task ends
with one that holds its result or why there is none. Standard output is not used for them, since any
library may print to it. A plain program, so that no caller's main module is run again.
Nothing may import it: it is run by its name.
"""

import os
import queue
import signal
import sys
import threading
from pathlib import Path

from pww.data.orders import Job, Said, Task
from pww.data.pieces import Span
from pww.data.sources import open_source
from pww.data.tokenizer import TextTokenizer
from pww.data.work import count, tokenise
from pww.errors import DataError


def main(fd: int) -> int:
    """Does what it is told until nobody tells it anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's reaches our parent too
    out = os.fdopen(fd, "w", encoding="utf-8")

    def say(said: Said) -> None:
        out.write(said.model_dump_json(exclude_defaults=True) + "\n")
        out.flush()

    def advance(chars: int) -> None:
        say(Said(chars=chars))

    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    job = Job.model_validate_json(tasks.get())
    source = None
    tokenizer: TextTokenizer | None = None
    folder = Path(job.folder)
    while True:
        task = Task.model_validate_json(tasks.get())
        spans = [Span(*span) for span in task.spans]
        try:
            if source is None:
                source = open_source(job.data, project=Path(job.project))
            if task.cut is None:
                say(Said(text=count(source, spans, advance)))
                continue
            if tokenizer is None:
                path = folder / "tokenizer.json"
                tokenizer = TextTokenizer(path.read_bytes(), origin=str(path))
            done = tokenise(
                source,
                spans,
                task.cut,
                tokenizer=tokenizer,
                stem=folder / f"{task.piece:05d}",
                advance=advance,
            )
            say(Said(tokenised=done))
        except DataError as fault:
            say(Said(data_fault=str(fault)))
        except OSError as fault:
            told = (fault.errno or 0, fault.strerror or str(fault), str(fault.filename or ""))
            say(Said(os_fault=told))


def _listen(tasks: "queue.SimpleQueue[str]") -> None:
    """Passes lines on; at their end, however the other process ended, this one ends at once."""
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
