"""Corpora that rank 0 finds or makes, and the others open."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pww.config.schema import BpeTokenizer, Data
from pww.data import Corpus, prepare
from pww.errors import DataError
from pww.trainer.corpora import on_every_rank


class Part:
    """One rank's part of two; what rank 0 shares is in `told`."""

    def __init__(self, rank: int, told: list[Any]) -> None:
        self.rank, self._told = rank, told
        self.faults: list[Exception | None] = []

    def share(self, work: Callable[[], Any]) -> Any:
        if self.rank == 0:
            self._told.append(work())
        return self._told[0]

    def agree_on_fault(self, fault: Exception | None) -> None:
        self.faults.append(fault)
        if fault is not None:
            raise fault


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    project = tmp_path_factory.mktemp("project")
    (project / "a.txt").write_text("".join(f"line {i} says {i * i}\n" for i in range(600)))
    data = Data(
        name="sample", kind="text", files=("a.txt",), roots=(".",), cache="cache", held_out=0.1,
        tokenizer=BpeTokenizer(kind="bpe", vocab_size=300), max_windows=0, column="text", workers=0,
    )  # fmt: skip
    return prepare(data, seq_len=16, vocab_multiple=64, project=project)


def nobody() -> dict[str, Corpus]:
    raise AssertionError("only rank 0 looks at the text")


def test_rank_0_makes_them_and_the_others_open_its_folders(corpus: Corpus) -> None:
    told: list[Any] = []
    zero, one = Part(0, told), Part(1, told)
    first = on_every_rank(zero, lambda: {"own": corpus}, cache="cache")  # type: ignore[arg-type]
    assert first["own"] is corpus, "not opened twice"
    second = on_every_rank(one, nobody, cache="cache")  # type: ignore[arg-type]
    assert second["own"].folder == corpus.folder
    assert second["own"].manifest == corpus.manifest
    assert zero.faults == one.faults == [None], "both took part"


def test_a_rank_that_does_not_see_the_folder_tells_all(tmp_path: Path) -> None:
    told: list[Any] = [{"own": tmp_path / "gone"}]
    one = Part(3, told)
    with pytest.raises(DataError) as fault:
        on_every_rank(one, nobody, cache="/scratch")  # type: ignore[arg-type]
    assert str(fault.value) == (
        f"rank 3 does not see {tmp_path / 'gone'}, the tokenised corpus of rank 0; set data.cache "
        "(now /scratch) to a folder that all nodes of the replica share"
    )
    assert one.faults == [fault.value]


def test_none_are_none() -> None:
    assert on_every_rank(Part(0, []), dict, cache="c") == {}  # type: ignore[arg-type]
    assert on_every_rank(Part(1, [{}]), nobody, cache="c") == {}  # type: ignore[arg-type]
