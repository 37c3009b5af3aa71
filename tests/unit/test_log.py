"""JSON lines after crashes and on full disks; which process says what, and how."""

import io
import json
import logging
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pww import log as pww_log
from pww.log import QUIET, JsonLines, read_json_lines

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "rows.jsonl"


def write(file: Path, *rows: dict[str, object], durable: bool = False) -> None:
    lines = JsonLines(file)
    for row in rows:
        lines.write(row, durable=durable)
    lines.close()


def test_rows_come_back_in_order_and_are_appended_to(file: Path) -> None:
    write(file, {"a": 1}, {"b": "é\n\r\x85\u2028"}, durable=True)
    write(file, {"c": [1, 2]})
    assert read_json_lines(file) == [{"a": 1}, {"b": "é\n\r\x85\u2028"}, {"c": [1, 2]}]
    assert len(file.read_bytes().split(b"\n")) == 4


def test_a_row_is_there_before_the_file_is_closed(file: Path) -> None:
    lines = JsonLines(file)
    lines.write({"a": 1})
    assert read_json_lines(file) == [{"a": 1}]
    lines.close()


def test_no_file_is_no_rows(file: Path) -> None:
    assert read_json_lines(file) == []


def test_a_line_torn_anywhere_costs_that_line_only(file: Path) -> None:
    write(file, {"a": 1}, {"b": {"c": "long enough"}})
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        file.write_bytes(whole[:cut])
        kept = [{"a": 1}, {"b": {"c": "long enough"}}] if cut == len(whole) - 1 else [{"a": 1}]
        assert read_json_lines(file) == kept
        write(file, {"d": 2}, {"e": 3})
        assert read_json_lines(file) == [*kept, {"d": 2}, {"e": 3}]


def test_what_is_no_object_is_left_out(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b'1\n[2]\nnull\n\n\xff\xfe\n{"a": NaN}\n{"b": 1}\n')
    rows = read_json_lines(file)
    assert [list(row) for row in rows] == [["a"], ["b"]]


FULL = """
import resource, sys
from pathlib import Path
from pww.log import JsonLines
lines = JsonLines(Path(sys.argv[1]))
lines.write({"a": 1})
for size in range(60):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        lines.write({"size": size, "text": "x" * 20})
        print(size)
    except OSError:
        pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
lines.write({"b": 2})
"""


def test_a_full_disk_costs_the_rows_that_it_refused(file: Path) -> None:
    """The kernel takes a part of a line before it refuses; the next row starts on its own line."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(file)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    kept = [int(word) for word in done.stdout.split()]
    rows = read_json_lines(file)
    assert rows[0] == {"a": 1}
    assert rows[-1] == {"b": 2}
    assert [row["size"] for row in rows[1:-1]] == kept


def test_two_writers_do_not_tear_each_others_rows(file: Path) -> None:
    one, two = JsonLines(file), JsonLines(file)
    for number in range(50):
        (one if number % 3 else two).write({"number": number})
    one.close()
    two.close()
    assert [row["number"] for row in read_json_lines(file)] == list(range(50))


# ---------------------------------------------------------------------------------- human lines


@pytest.fixture
def loggers() -> Iterator[None]:
    """Puts the loggers back as pytest had them."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    names = ("", "pww", *QUIET)
    before = {n: (logging.getLogger(n).level, logging.getLogger(n).propagate) for n in names}
    for name in QUIET:  # a uvicorn that configures its own logs may have run in this process
        logging.getLogger(name).propagate = True
    yield
    root.handlers[:] = handlers
    for name, (level, propagate) in before.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).propagate = propagate


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("rank", "speaks"), [(0, True), (1, False)])
def test_rank_0_informs_and_every_rank_warns(loggers, capsys, rank: int, speaks: bool) -> None:
    pww_log.setup(rank=rank, label="local/a")
    logger = logging.getLogger("pww.some.part")
    logger.info("an %s", "info")
    logger.warning("a warning")
    logging.getLogger("pww").debug("a detail")
    lines = capsys.readouterr().err.splitlines()
    assert ["INFO an info" in line for line in lines] == ([True, False] if speaks else [False])
    assert lines[-1].endswith("[local/a] WARNING a warning")
    assert len(lines[0].split()[0]) == len("12:34:56")


def test_libraries_are_quiet_and_warn(loggers, capsys) -> None:
    pww_log.setup()
    for name in (*QUIET, "someone.else"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(f"{name}.child").warning("from %s", name)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-1] for line in lines] == [*QUIET, "someone.else"]
    assert "[" not in lines[0], "no label, no brackets"


def test_setting_up_again_says_everything_once(loggers, capsys) -> None:
    pww_log.setup()
    pww_log.setup()
    logging.getLogger("pww").info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_a_terminal_gets_no_markup_out_of_messages(loggers, monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    pww_log.setup(label="local/a")
    logging.getLogger("pww").warning("list [red] of %s", ["[bold]"])
    text = " ".join(re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue()).split())
    assert "[local/a]" in text
    assert "[red]" in text
    assert "['[bold]']" in text
    assert pww_log.console().file is terminal


def test_a_row_that_is_no_json_is_a_bug_and_costs_nothing(file: Path) -> None:
    lines = JsonLines(file)
    with pytest.raises(TypeError):
        lines.write({"a": object()})
    lines.write({"b": 1})
    lines.close()
    assert json.loads(file.read_text()) == {"b": 1}


def test_only_the_rows_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": 22}\n{"a": 3}\n')
    whole = [{"a": 1}, {"a": 22}, {"a": 3}]
    assert read_json_lines(file, last_bytes=1000) == whole
    assert read_json_lines(file, last_bytes=len(file.read_bytes())) == whole
    assert read_json_lines(file, last_bytes=12) == [{"a": 3}]
    # a line that is cut at a place where the rest could be read is no row
    file.write_bytes(b'[{"a": 1}\n{"b": 2}\n')
    assert read_json_lines(file, last_bytes=18) == [{"b": 2}]


def test_numbers_that_json_lacks_are_words_there_and_numbers_again(file: Path) -> None:
    row = {"loss": math.nan, "more": {"up": [math.inf, 1.5]}, "down": -math.inf, "why": "NaN loss"}
    lines = JsonLines(file)
    lines.write(row)
    lines.close()

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    told = json.loads(file.read_text(), parse_constant=refuse)
    assert told["loss"] == "NaN"
    assert told["more"] == {"up": ["Infinity", 1.5]}
    (found,) = read_json_lines(file)
    assert math.isnan(found.pop("loss"))
    assert found == {key: value for key, value in row.items() if key != "loss"}
