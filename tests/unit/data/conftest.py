from collections.abc import Callable
from pathlib import Path

import pytest

from pww.config.schema import BpeTokenizer, Data, FileTokenizer


def _lines(start: int, stop: int) -> str:
    return "".join(
        f"line {i} says {i * 7919 % 1000} and {i * 104729 % 1000}.\n" for i in range(start, stop)
    )


@pytest.fixture
def lines() -> Callable[[int, int], str]:
    """Numbered lines, so that each can be found again in decoded windows."""
    return _lines


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Data]:
    """A `Data` over the files of `tmp_path / "text"`, any field replaced by keyword."""

    def make(**changes: object) -> Data:
        fields: dict[str, object] = {
            "name": "sample",
            "kind": "text",
            "files": ("*.txt",),
            "roots": ("text",),
            "cache": "cache",
            "tokenizer": BpeTokenizer(kind="bpe", vocab_size=300),
            "held_out": 0.1,
            "max_windows": 0,
            "column": "text",
            "workers": 0,
        }
        return Data.model_validate(fields | changes)

    (tmp_path / "text").mkdir()
    return make


@pytest.fixture
def given() -> Callable[[Path], FileTokenizer]:
    return lambda path: FileTokenizer(kind="file", path=str(path))
