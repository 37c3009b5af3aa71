"""Ranges as RFC 9110 has them, against its own examples."""

import pytest

from pww.transport.blob_range import ask_range, read_content_range, read_range


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", (0, 10_000, 200)),
        ("bytes=0-499", (0, 500, 206)),
        ("bytes=500-999", (500, 1000, 206)),
        ("bytes=-500", (9500, 10_000, 206)),
        ("bytes=9500-", (9500, 10_000, 206)),
        ("bytes=9999-20000", (9999, 10_000, 206)),
        ("bytes=-20000", (0, 10_000, 206)),
        ("bytes=10000-", (0, 0, 416)),
        ("bytes=-0", (0, 0, 416)),
        ("bytes=0-0,-1", (0, 10_000, 200)),
        ("bytes=5-4", (0, 10_000, 200)),
        ("bytes=-", (0, 10_000, 200)),
        ("lines=1-2", (0, 10_000, 200)),
        ("bytes=1-2\n", (0, 10_000, 200)),
        ("bytes=" + "9" * 18 + "-", (0, 0, 416)),
        ("bytes=" + "9" * 19 + "-", (0, 10_000, 200)),
    ],
)
def test_read_range(header: str, wanted: tuple[int, int, int]) -> None:
    assert read_range(header, 10_000) == wanted


def test_empty_object() -> None:
    assert read_range("", 0) == (0, 0, 200)
    assert read_range("bytes=0-", 0) == (0, 0, 416)


def test_content_range() -> None:
    assert read_content_range("bytes 42-1233/1234") == (42, 1234, 1234)
    for text in ("", "bytes */1234", "bytes 1-2/*", "bytes 1-2/3x", "bytes=1-2/3"):
        assert read_content_range(text) is None
    assert ask_range(42, 1234) == "bytes=42-1233"
