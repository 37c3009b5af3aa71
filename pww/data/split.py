"""The split: which text is held out, decided on characters, before there is a tokenizer.

Deciding on text (and not on windows) keeps held-out text out of the tokenizer's training too. The
corpus, its documents laid end to end, is ruled into sections of `section_chars` characters; section
`g` is held out when `floor((g + 1) h + 1/2) > floor(g h + 1/2)`, which spreads a share `h` evenly.
A line belongs to the section that it starts in (one far longer than a section is cut at words).
Each part that the split makes of a document becomes a document of its own: text on the two sides of
a held-out part is never joined.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

NUM_GROUPS = 32
MIN_WINDOWS = 4
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Part:
    """A run of one document's text, all of it held out or none of it."""

    text: str
    held_out: bool


def section_length(num_chars: int, *, held_out: float, window_tokens: int) -> int:
    """Characters of a section: for about 32 held-out ones of a few windows, and at least one.

    All of them, if nothing is held out.
    """
    if held_out == 0:
        return max(1, num_chars)
    share = num_chars * held_out
    wanted = max(share / NUM_GROUPS, MIN_WINDOWS * CHARS_PER_TOKEN * window_tokens)
    return max(1, int(min(wanted, share)))


def is_held_out(section: int, share: float) -> bool:
    """The rule in the module's docstring."""
    return math.floor((section + 1) * share + 0.5) > math.floor(section * share + 0.5)


def split(
    documents: Iterable[str], *, section_chars: int, held_out: float, start: int = 0
) -> Iterator[Part]:
    """The documents' text, all of it and in order, as parts; empty documents give none.

    `start` is where the first document begins, in characters of the corpus.
    """
    for text in documents:
        at = 0
        while at < len(text):
            section = (start + at) // section_chars
            flag = is_held_out(section, held_out)
            section += 1
            while (
                section * section_chars < start + len(text)
                and is_held_out(section, held_out) == flag
            ):
                section += 1
            cut = _line_start(text, section * section_chars - start, section_chars)
            yield Part(text[at:cut], flag)
            at = cut
        start += len(text)


def _line_start(text: str, at: int, section_chars: int) -> int:
    """The next start of a line, or the end, from `at` on; of a word, or `at`, if none is near."""
    if at >= len(text):
        return len(text)
    limit = at + section_chars // 2
    line = text.find("\n", at - 1, limit)
    if line >= 0:
        return line + 1
    if len(text) <= limit:
        return len(text)
    word = text.find(" ", at - 1, limit)
    return word + 1 if word >= 0 else at
