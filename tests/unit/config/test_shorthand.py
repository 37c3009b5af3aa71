"""`tokenizer=PATH` in every program that composes a configuration."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pww import train
from pww.central.__main__ import main as central
from pww.config.load import compose
from pww.config.shorthand import with_tokenizer
from pww.data.__main__ import main as data
from pww.data.tokenizer import train_bpe
from pww.errors import ConfigError


def test_a_tokenizer_is_given_by_one_word(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(train_bpe(["text"], vocab_size=257).json)
    ours = with_tokenizer(["data=c4", "tokenizer=t.json", "seed=1"], here=tmp_path)
    assert ours == [
        "data=c4", "seed=1", "data/tokenizer=file", f"data.tokenizer.path={tmp_path}/t.json"
    ]  # fmt: skip
    composed = compose(ours).data.tokenizer
    assert composed.kind == "file"
    assert composed.path == f"{tmp_path}/t.json"
    theirs = with_tokenizer(["tokenizer=gpt2/tokenizer.json"], here=tmp_path)
    assert theirs[-1] == "data.tokenizer.path=gpt2/tokenizer.json"  # below one of data.roots
    assert with_tokenizer(["data=c4"], here=tmp_path) == ["data=c4"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tokenizer=a", "tokenizer=b"], "tokenizer=a tokenizer=b: says more than once which"),
        (["tokenizer=a", "data/tokenizer=bpe"], "tokenizer=a data/tokenizer=bpe: says more than"),
        (["tokenizer="], "tokenizer=: give the path of a tokenizer.json"),
    ],
)
def test_a_tokenizer_that_is_not_clear_is_refused(
    tmp_path: Path, words: list[str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}"):
        with_tokenizer(words, here=tmp_path)


@pytest.mark.parametrize(
    "program",
    [train.start, lambda words: central(list(words)), lambda words: data(["tokenize", *words])],
    ids=["train", "central", "data"],
)
def test_every_program_takes_it(
    program: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(["tokenizer=", "seed=1"]) == 2
    assert capsys.readouterr().err == "tokenizer=: give the path of a tokenizer.json\n"
    assert program(["--cfg", "job", "tokenizer=some/tokenizer.json"]) == 0
    assert (
        "  tokenizer:\n    kind: file\n    path: some/tokenizer.json\n" in capsys.readouterr().out
    )
