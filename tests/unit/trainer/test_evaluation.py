"""Held-out loss: the same total on any number of ranks, pooled over tokens; several corpora."""

import math
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "integration" / "programs"))
sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from reference_qwen3 import loss_sum, state_of
from tiny import SEQ_LEN, TinyCorpus

from pww.config.load import compose
from pww.data import prepare
from pww.errors import DataError
from pww.metrics import perplexity
from pww.trainer import evaluation, evaluation_sets
from pww.trainer.api import EvalResult, SetResult
from pww.trainer.evaluation import spread
from pww.trainer.evaluation_sets import open_sets
from pww.trainer.titan_data import my_slices

LENGTH = 4


class Ids:
    """A corpus of which every token of window i is i; `losses[i]` is what a target of it costs."""

    def __init__(self, losses: list[float], *, held_out: int = 0) -> None:
        self.losses = losses
        self.manifest = SimpleNamespace(num_windows=len(losses), num_held_out=held_out)

    def windows(self, ids):
        return np.repeat(np.asarray(ids, dtype=np.int64)[:, None], LENGTH + 1, axis=1)

    held_out = windows


class Engine:
    """What an evaluation needs of an engine: a model whose loss is a table."""

    def __init__(self, losses: list[float]) -> None:
        self.table = torch.tensor(losses)
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(training=SimpleNamespace(seq_len=LENGTH))
        self.model_parts = [torch.nn.Identity()]
        self.shapes: list[tuple[int, ...]] = []

    def train_context(self):
        return nullcontext()

    def loss_fn(self, logits, labels, _):
        self.shapes.append(tuple(labels.shape))
        told = labels[labels != -100]
        return self.table[told].sum(), None


class One:
    """A rank of `world`, without the others."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def agree_on_fault(self, fault) -> None:
        if fault is not None:
            raise fault


def over_ranks(losses: list[float], *, world: int, share: int, monkeypatch) -> tuple[float, int]:
    """The pooled loss of `world` ranks that take `share` windows each at a time."""
    windows = list(range(len(losses)))
    engines = [Engine(losses) for _ in range(world)]
    parts = []
    for rank, engine in enumerate(engines):
        slices = my_slices(windows, batch=share * world, rank=rank, world=world)
        rows = [Ids(losses).windows(ids) if len(ids) else None for ids in slices]
        parts.append(evaluation._my_sum(engine, rows, share=share, seq_len=LENGTH))
    assert len({tuple(engine.shapes) for engine in engines}) == 1, "as many passes on every rank"
    monkeypatch.setattr(evaluation.dist, "all_reduce", lambda total: total.add_(sum(parts[1:])))
    return evaluation.pooled_loss(
        engines[0], Ids(losses).windows, windows=windows, batch=share * world, ranks=One(0, world)
    )


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("num", [1, 6, 11, 23])
def test_the_total_is_the_same_on_any_number_of_ranks(world: int, num: int, monkeypatch) -> None:
    losses = [1.0 + 0.25 * (i % 5) for i in range(num)]
    for share in (1, 3):
        loss, tokens = over_ranks(losses, world=world, share=share, monkeypatch=monkeypatch)
        assert tokens == num * LENGTH
        assert loss == math.fsum(losses) / num, "sums of quarters are exact"


def test_perplexity_is_of_the_pooled_loss_and_no_mean_of_perplexities() -> None:
    corpus = Ids([2.0, 4.0], held_out=2)
    result = evaluation.evaluate(
        Engine(corpus.losses), corpus, {}, max_windows=9, batch=1, ranks=One(0, 1)
    )
    assert result == EvalResult(3.0, 2 * LENGTH)
    assert perplexity(result.loss) == pytest.approx(20.0855, abs=1e-4)
    assert (perplexity(2.0) + perplexity(4.0)) / 2 == pytest.approx(31.0, abs=0.1), "the wrong one"
    assert perplexity(1e9) == math.exp(700), "still a float"


def test_windows_are_fixed_and_spread() -> None:
    assert spread(11, 3) == [0, 3, 7]
    assert spread(3, 64) == [0, 1, 2]
    assert spread(64, 64) == list(range(64))


def test_sets_are_evaluated_by_name_over_all_their_windows() -> None:
    table = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    held_out, other = Ids(table, held_out=2), Ids(table)
    result = evaluation.evaluate(
        Engine(table), held_out, {"all": other, "two": Ids(table[:2])}, max_windows=4, batch=2,
        ranks=One(0, 1),
    )  # fmt: skip
    assert (result.loss, result.tokens) == (1.5, 8)
    # 0, 1, 3, 4 of six
    assert result.sets == (SetResult("all", 3.0, 16), SetResult("two", 1.5, 8))


def test_a_trainer_evaluates_its_sets(build) -> None:
    trainer = build()
    trainer._sets = {"other": TinyCorpus(num_windows=5)}
    state = state_of(dict(trainer.tensors()))
    rows = torch.from_numpy(TinyCorpus().windows(range(5)))
    expected = float(loss_sum(state, rows, heads=4, kv_heads=2, layers=2).detach())
    (found,) = trainer.evaluate().sets
    assert (found.name, found.tokens) == ("other", 5 * SEQ_LEN)
    assert found.loss == pytest.approx(expected / (5 * SEQ_LEN), rel=1e-6)


# ------------------------------------------------------------------------------ sets of text


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name, word in (("own", "alpha beta gamma"), ("other", "delta epsilon gamma")):
        lines = [f"{word} {i} {i * i}\n" for i in range(1500)]
        (tmp_path / "data" / f"{name}.txt").write_text("".join(lines))
    return tmp_path


def settings(project: Path, files: str = "other.txt"):
    return compose(
        [
            "data=tinyshakespeare", "data.files=[own.txt]", f"data.roots=[{project / 'data'}]",
            "data.tokenizer.vocab_size=300", "data.held_out=0.1", "evaluation.max_windows=6",
            f"evaluation.sets=[{{name: other, kind: text, files: [{files}]}}]",
        ]
    )  # fmt: skip


def own(config, project: Path):
    return prepare(
        config.data, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
        project=project,
    )  # fmt: skip


def test_a_set_has_the_runs_tokenizer_and_length(project: Path) -> None:
    config = settings(project)
    corpus = own(config, project)
    sets = open_sets(config, corpus, project=project)
    other = sets["other"]
    assert other.manifest.tokenizer == corpus.manifest.tokenizer
    assert other.manifest.padded_vocab == corpus.manifest.padded_vocab
    assert other.manifest.window_tokens == config.model.seq_len + 1
    assert other.manifest.num_windows == 6
    text = "".join(corpus.decode(row) for row in other.windows(range(6)).tolist())
    assert "delta epsilon" in text
    assert "alpha" not in text
    again = open_sets(config, corpus, project=project)["other"]
    assert again.folder == other.folder, "from the cache"


def test_nothing_of_a_set_is_held_out(project: Path) -> None:
    """All of it is evaluated, also one that has too little text to hold some out."""
    text = "".join(f"delta epsilon {i}\n" for i in range(20))
    (project / "data" / "other.txt").write_text(text)
    config = settings(project)
    corpus = own(config, project)
    (other,) = open_sets(config, corpus, project=project).values()
    made = other.manifest
    assert (made.num_held_out, made.num_left_out) == (0, 0)
    assert 1 <= made.num_windows <= 6
    assert made.num_tokens == made.num_windows * made.window_tokens + made.tail_tokens
    ids = [int(token) for row in other.windows(range(made.num_windows)) for token in row]
    assert text.startswith(corpus.decode(ids))


def test_a_set_of_text_beside_a_corpus_with_a_column_of_its_own(project: Path) -> None:
    lines = "".join(f'{{"body": "alpha beta gamma {i} {i * i}"}}\n' for i in range(1500))
    (project / "data" / "own.jsonl").write_text(lines)
    config = compose(
        [
            "data=jsonl", "data.files=[own.jsonl]", "data.column=body", "data.held_out=0.1",
            f"data.roots=[{project / 'data'}]", "data.tokenizer.vocab_size=300",
            "evaluation.max_windows=6",
            "evaluation.sets=[{name: other, kind: text, files: [other.txt]}]",
        ]
    )  # fmt: skip
    sets = open_sets(config, own(config, project), project=project)
    assert sets["other"].manifest.num_windows == 6


def test_a_set_without_text_is_named(project: Path) -> None:
    config = settings(project, files="gone.txt")
    with pytest.raises(DataError, match=r"evaluation set other: .*gone\.txt"):
        open_sets(config, own(config, project), project=project)


def test_another_tokenizer_is_refused(project: Path, monkeypatch) -> None:
    config = settings(project)
    corpus = own(config, project)
    monkeypatch.setattr(evaluation_sets, "prepare", lambda *_, **more: FakeCorpus(project))
    with pytest.raises(DataError, match=r"set other in .* with another tokenizer \(ffff.*delete"):
        open_sets(config, corpus, project=project)


class FakeCorpus:
    """A corpus that somebody put into the cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, SimpleNamespace(tokenizer="f" * 64)
