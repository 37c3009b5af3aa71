"""Buffers for file bytes, aligned as files are.

The system copies between the page cache and a buffer whose place is a little off the file's place
(modulo a page) at a third of its speed, and `bytearray` and numpy are off by 16 or 32 bytes. (Four
kilobytes apart, loads and stores look alike to the processor: Intel's optimization manual, "4-KByte
memory aliasing".) Tensors are at multiples of 64 bytes, as they lie in our files.
"""

import mmap
import threading

ALIGNMENT = 64
"""A cache line. Data starts at a multiple of it in a file, and in the memory it is read into."""


def aligned_buffer(size_bytes: int) -> memoryview:
    """Zeroed memory that begins with a page."""
    return memoryview(mmap.mmap(-1, max(size_bytes, 1)))[:size_bytes]


def thread_buffer(size_bytes: int) -> memoryview:
    """This thread's own memory, the same at every call: fresh pages cost as much as a copy."""
    if len(_own.kept) < size_bytes:
        _own.kept = aligned_buffer(size_bytes)
    return _own.kept[:size_bytes]


class _Own(threading.local):
    def __init__(self) -> None:
        self.kept = aligned_buffer(0)


_own = _Own()
