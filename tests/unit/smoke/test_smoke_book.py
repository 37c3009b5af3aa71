"""What a smoke test leaves behind, and the one last line that is made of it."""

import json
import os
from pathlib import Path

import pytest

from pww.errors import StateError
from pww.log import read_json_lines
from pww.smoke.book import Book, Check, concluded, note_fault, said

RIGHT = Check("groups", "right", "as they should be")
WRONG = Check("bandwidth", "wrong", "0.1 GB/s", {"allreduce_gb_s": 0.1})


def test_every_check_is_a_line_for_people_and_one_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Book(tmp_path, as_json=False).add([RIGHT, WRONG])
    assert capsys.readouterr().out == ("  groups      as they should be\n! bandwidth   0.1 GB/s\n")
    assert (tmp_path / "checks.txt").read_text().splitlines() == [RIGHT.line, WRONG.line]
    Book(tmp_path, as_json=True).add([WRONG])
    row = {
        "what": "bandwidth", "state": "wrong", "told": "0.1 GB/s",
        "figures": {"allreduce_gb_s": 0.1},
    }  # fmt: skip
    assert json.loads(capsys.readouterr().out) == row
    assert list(read_json_lines(tmp_path / "checks.jsonl"))[-1] == row


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ([RIGHT], "PASS"),
        ([RIGHT, Check("cores", "unchecked", "nothing binds them")], "PASS"),
        ([RIGHT, WRONG], "FAIL: bandwidth: 0.1 GB/s"),
        ([WRONG, Check("theta", "wrong", "other")], "FAIL: bandwidth: 0.1 GB/s; theta: other"),
    ],
)
def test_one_wrong_check_is_a_failure(checks: list[Check], text: str, tmp_path: Path) -> None:
    book = Book(tmp_path, as_json=False)
    book.add(checks)
    assert book.close() == (text == "PASS")
    assert concluded(tmp_path, 0 if text == "PASS" else 1) == text


def test_a_pass_is_worth_nothing_when_a_rank_failed_after_it(tmp_path: Path) -> None:
    assert Book(tmp_path, as_json=False).close()
    text = concluded(tmp_path, 137)
    assert text == "FAIL: the ranks ended with exit code 137 and said nothing"
    assert (tmp_path / "verdict").read_text() == f"{text}\n"


def test_no_verdict_is_a_failure_even_of_ranks_that_ended_well(tmp_path: Path) -> None:
    assert concluded(tmp_path, 0).startswith("FAIL: the ranks ended with exit code 0")


def test_what_was_first_is_the_reason(tmp_path: Path) -> None:
    for number in range(5):
        note_fault(tmp_path, str(number), f"rank {number}\n  fell")
        os.utime(tmp_path / "faults" / str(number), ns=(0, 1_000 * (9 - number)))
    note_fault(tmp_path, "3", "what came of it")
    assert concluded(tmp_path, 1) == (
        f"FAIL: rank 4 fell; rank 3 fell; rank 2 fell; 2 more in {tmp_path / 'faults'}"
    )
    (tmp_path / "verdict").unlink()
    note_fault(tmp_path, "died", "rank 7 was killed")
    assert concluded(tmp_path, 1).startswith("FAIL: rank 7 was killed; rank 4 fell; ")


def test_the_last_line_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert said("PASS", as_json=False) == 0
    assert said("FAIL: why", as_json=False) == 1
    assert capsys.readouterr().out == "PASS\nFAIL: why\n"
    assert said("PASS", as_json=True) == 0
    assert said("FAIL: why", as_json=True) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"verdict": "PASS", "reason": ""}, {"verdict": "FAIL", "reason": "why"},
    ]  # fmt: skip


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(StateError, match=r"cannot write .*gone/checks.jsonl: .*; make room, or gi"):
        Book(gone, as_json=False).add([RIGHT])
    note_fault(gone, "1", "rank 1 fell")
    assert capsys.readouterr().err.startswith("rank 1 fell (")
    assert concluded(gone, 1).startswith("FAIL: the ranks ended with exit code 1")
    assert f"cannot write {gone / 'verdict'}: " in capsys.readouterr().err
