"""Byte ranges as HTTP writes them: what a request asks for, and what an answer says that it holds.

Source: RFC 9110, section 14.
"""

import re

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})\Z")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})\Z")


def read_range(header: str, size_bytes: int) -> tuple[int, int, int]:
    """The half-open bytes that a Range header asks for, and the status of the answer.

    200 and the whole where there is no header, or one that is to be ignored (several ranges, other
    units); 206 and a part; 416 if the object has none of those bytes.
    """
    whole = (0, size_bytes, 200)
    found = _RANGE.match(header)
    if not found or found.groups() == ("", ""):
        return whole
    first, last = found.groups()
    if not first:  # the last so many bytes
        start, stop = max(size_bytes - int(last), 0), size_bytes
    elif last and int(last) < int(first):
        return whole
    else:
        start, stop = int(first), min(int(last) + 1 if last else size_bytes, size_bytes)
    return (start, stop, 206) if start < stop else (0, 0, 416)


def ask_range(start: int, stop: int) -> str:
    """The Range header for half-open bytes."""
    return f"bytes={start}-{stop - 1}"


def read_content_range(header: str) -> tuple[int, int, int] | None:
    """Half-open bytes and the size of the whole that a Content-Range header tells."""
    found = _CONTENT_RANGE.match(header)
    if not found:
        return None
    return int(found[1]), int(found[2]) + 1, int(found[3])
