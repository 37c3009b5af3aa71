"""What pool.py and worker.py say to each other: JSON, one model a line, nothing pickled."""

from pww.config.schema import Data
from pww.data.work import Cut, Record, Text, Tokenised


class Job(Record):
    """What all tasks have in common."""

    data: Data
    project: str
    folder: str  # of the pieces' files, and of tokenizer.json before the first piece is tokenised


class Task(Record):
    """A piece to count or, with `cut`, to tokenise."""

    piece: int
    spans: tuple[tuple[int, int, int | None], ...]
    cut: Cut | None


class Said(Record):
    """What a worker has to say; the last line of a task has one of the fields below `chars`."""

    chars: int = 0
    text: Text | None = None
    tokenised: Tokenised | None = None
    data_fault: str | None = None
    os_fault: tuple[int, str, str] | None = None
