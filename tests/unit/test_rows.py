"""A resumed run's rows: those of a cut-off phase go, the end is read and nothing before it."""

import errno
import itertools
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from pww import rows
from pww.log import JsonLines, read_json_lines
from pww.rows import Left, take_back

HASH = "ab" * 32


def train(*steps: int) -> list[dict[str, object]]:
    return [{"split": "train", "step": step, "round": 0, "loss": 1.5} for step in steps]


def evaluation(round_: int, state_hash: str = HASH) -> dict[str, object]:
    return {"split": "eval", "step": 0, "round": round_, "loss": 2.0, "state_hash": state_hash}


def outer(delta: str) -> dict[str, object]:
    return {"split": "outer", "step": 0, "round": 1, "loss": 2.0, "delta": delta}


def written(file: Path, told: Iterable[dict[str, object]]) -> Path:
    lines = JsonLines(file)
    for row in told:
        lines.write(row)
    lines.close()
    return file


def test_train_rows_later_than_what_is_resumed_from_go_and_no_others(tmp_path: Path) -> None:
    told = [evaluation(0), *train(1, 2), outer("d"), *train(3), evaluation(1), *train(4)]
    file = written(tmp_path / "metrics.jsonl", told)
    with file.open("ab") as torn:
        torn.write(b'{"split": "train", "step": 5')
    assert take_back(file, after=2) == Left(1, HASH, "d")
    assert read_json_lines(file) == [*told[:4], told[5]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]
    before = file.stat()
    assert take_back(file, after=2) == Left(1, HASH, "d")
    assert (file.stat().st_ino, file.stat().st_size) == (before.st_ino, before.st_size)


def test_rows_that_nobody_of_ours_wrote_stay(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    odd = [
        '{"split": "train"}',
        '{"split": "train", "step": null}',
        '{"split": "train", "step": "x"}',
        '{"split": "eval", "round": "one"}',
        "[1]",
        "[" * 100_000,
    ]
    file.write_text("".join(f"{line}\n" for line in [*odd, '{"split": "train", "step": 3}']))
    assert take_back(file, after=2) == Left()
    assert file.read_text().splitlines() == odd


def test_a_run_that_has_no_rows_left_or_none_at_all(tmp_path: Path) -> None:
    assert take_back(tmp_path / "metrics.jsonl", after=0) == Left()
    assert list(tmp_path.iterdir()) == []
    file = written(tmp_path / "metrics.jsonl", train(1, 2))
    assert take_back(file, after=0) == Left()
    assert file.read_bytes() == b""
    assert take_back(file, after=0) == Left()


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_lines_come_back_whole_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(rows, "BLOCK_BYTES", block)
    file = tmp_path / "x"
    for text in (b"", b"a", b"a\n", b"\n\na", b"a\nbcd\n\n" + b"e" * 99 + b"\nf", b"a\n" * 70):
        file.write_bytes(text)
        with file.open("rb") as opened:
            found = list(rows._backwards(opened, len(text)))[::-1]
        assert [line for _, line in found] == text.splitlines(keepends=True)
        starts = itertools.accumulate((len(line) for _, line in found), initial=0)
        assert [at for at, _ in found] == list(starts)[:-1]
    told = [evaluation(0), *train(*range(1, 9)), outer("d"), evaluation(1), *train(9, 10)]
    written(tmp_path / "y", told)
    assert take_back(tmp_path / "y", after=8) == Left(1, HASH, "d")
    assert read_json_lines(tmp_path / "y") == told[:-2]


def test_only_the_end_of_a_long_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [evaluation(0), *train(*range(1, 20_000)), outer("d"), evaluation(1), *train(20_000)]
    file = written(tmp_path / "metrics.jsonl", told)
    parsed: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(rows.json, "loads", lambda line: parsed.append(line) or loads(line))
    assert take_back(file, after=20_000) == Left(1, HASH, "d")
    assert len(parsed) == 3
    assert take_back(file, after=19_999) == Left(1, HASH, "d")
    assert len(parsed) == 3 + 4 + 1, "as far as the row that stays, and the one that goes again"
    assert read_json_lines(file) == told[:-1]


def test_a_disk_that_refuses_to_drop_rows_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path / "metrics.jsonl", train(1))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rows.os, "fsync", full)
    with caplog.at_level(logging.WARNING):
        assert take_back(file, after=0) == Left()
    assert "a phase that was cut off stay in metrics.jsonl: [Errno 28] No space" in caplog.text
    assert read_json_lines(file) == train(1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
