"""Text and who trains on which of it."""

from pathlib import Path

import pytest
import torch

from pww.config.schema.lab import CharLm
from pww.errors import DataError
from pww.lab import split, text
from pww.lab.text import VOCABULARY, Corpus, Piece, encoded, speeches

PLAY = "Ann:\nOne.\nTwo.\n\nBob:\nThree!\n\nAnn:\nFour?\n\nno name here\n"


def task(root: Path, which: str = "auto", how: str = "iid") -> CharLm:
    return CharLm.model_validate(
        {"kind": "charlm", "size": "toy", "text": which, "roots": [str(root)], "split": how}
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tinyshakespeare"
    folder.mkdir()
    (folder / "input.txt").write_text(PLAY * 40)
    return tmp_path


def corpus(*sizes: int) -> Corpus:
    """Author i wrote `sizes[i]` of letter i."""
    pieces = tuple(Piece(f"author {i}", chr(97 + i) * size) for i, size in enumerate(sizes))
    return Corpus("made", pieces, encoded("z" * 100))


def test_96_characters_and_what_is_none_of_them() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 96
    assert [VOCABULARY[i] for i in encoded(VOCABULARY).tolist()] == list(VOCABULARY)
    assert "".join(VOCABULARY[i] for i in encoded("é\tx\r\n").tolist()) == "?   x\n"


def test_speeches_have_speakers() -> None:
    found = list(speeches(PLAY))
    assert [p.author for p in found] == ["Ann", "Bob", "Ann", "Ann"]
    assert found[1].text == "Bob:\nThree!\n\n"


def test_a_file_is_found_and_a_tenth_held_out(root: Path) -> None:
    found = text.load(task(root))
    assert found.name == "tinyshakespeare"
    kept = sum(len(p.text) for p in found.train)
    assert 0.08 < len(found.held_out) / (kept + len(found.held_out)) < 0.12
    whole = "".join(p.text for p in found.train)
    assert whole == (PLAY * 40)[: len(whole)]


def test_without_a_file_python_s_own_text_is_used_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = text.load(task(tmp_path))
    assert found.name == "pydocs"
    assert "documentation of Python is used instead" in caplog.text
    assert sum(len(p.text) for p in found.train) > 500_000
    assert len({p.author for p in found.train}) > 16


def test_a_text_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file matches 'tinyshakespeare/input.txt'"):
        text.load(task(tmp_path, "tinyshakespeare"))


def test_a_text_that_cannot_be_read(root: Path) -> None:
    (root / "tinyshakespeare" / "input.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"cannot read .*; use task.text=pydocs"):
        text.load(task(root))


def test_a_text_too_short_to_part(tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("A:\nb")
    with pytest.raises(DataError, match="1 pieces leave nothing to hold out"):
        text.load(task(tmp_path))


def test_every_author_is_whole_with_one_worker_and_shares_are_even() -> None:
    sizes = [50, 40, 30, 30, 20, 10]
    found = split.shares(corpus(*sizes).train, 3)
    owners = [{p.author for p in part} for part in found]
    assert sum(map(len, owners)) == 6
    assert set().union(*owners) == {f"author {i}" for i in range(6)}
    assert [sum(len(p.text) for p in part) for part in found] == [60, 60, 60]


def test_workers_draw_from_their_own_text_alone() -> None:
    made = split.streams(corpus(50, 40, 30), workers=3, split="author", length=5)
    drawn = made.draw(torch.Generator().manual_seed(0), windows=20, length=5)
    assert drawn.shape == (3, 20, 5)
    letters = [{VOCABULARY[i] for i in drawn[w].flatten().tolist()} for w in range(3)]
    assert sorted(map(tuple, letters)) == [("a",), ("b",), ("c",)]


def test_all_draw_from_all_of_it_when_iid() -> None:
    made = split.streams(corpus(50, 40), workers=2, split="iid", length=3)
    drawn = made.draw(torch.Generator().manual_seed(0), windows=400, length=3)
    for worker in range(2):
        share = float((drawn[worker] == encoded("a")).double().mean())
        assert share == pytest.approx(50 / 90, abs=0.06)
    assert not torch.equal(drawn[0], drawn[1])


def test_every_place_of_a_text_can_be_drawn() -> None:
    made = split.streams(corpus(10), workers=1, split="iid", length=4)
    made = split.Streams(torch.arange(10, dtype=torch.uint8), made.starts, made.sizes)
    drawn = made.draw(torch.Generator().manual_seed(0), windows=500, length=4)
    assert set(drawn[0, :, 0].tolist()) == set(range(7))
    assert torch.equal(drawn[0, :, 3], drawn[0, :, 0] + 3)


def test_too_few_authors() -> None:
    with pytest.raises(DataError, match=r"made has 2 authors, too few for workers=3"):
        split.streams(corpus(50, 50), workers=3, split="author", length=5)


def test_held_out_windows_lie_evenly() -> None:
    made = Corpus("made", (), torch.arange(100, dtype=torch.uint8))
    found = split.held_out(made, windows=4, length=10)
    assert found[0, :, 0].tolist() == [0, 30, 60, 90]
    with pytest.raises(DataError, match="less than a window of 101 is held out"):
        split.held_out(made, windows=1, length=101)
