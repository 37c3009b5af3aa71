"""The export of theta: what is written, when it is complete, what is refused and how it is said."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "programs"))

from lone_replica import Lone, alone

from pww import export as command
from pww.central import exporting, huggingface
from pww.central.architecture import NAMES, Decoder, architecture, their_name
from pww.central.huggingface import CONFIG, MODEL, Facts, export
from pww.config import paths
from pww.config.load import compose
from pww.errors import StateError

DECODER = Decoder("qwen3", 64)
FACTS = Facts(DECODER, round=3, state_hash="a" * 64, end_of_document=0)
LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, ROWS = 2, 8, 4, 2, 6, 10, 32


def shapes(*, tied: bool = False) -> dict[str, tuple[int, ...]]:
    rows = {
        "wq": (HEADS * HEAD_DIM, DIM), "wk": (KV_HEADS * HEAD_DIM, DIM),
        "wv": (KV_HEADS * HEAD_DIM, DIM), "wo": (DIM, HEADS * HEAD_DIM), "q_norm": (HEAD_DIM,),
        "k_norm": (HEAD_DIM,), "w1": (HIDDEN, DIM), "w2": (DIM, HIDDEN), "w3": (HIDDEN, DIM),
        "attention_norm": (DIM,), "ffn_norm": (DIM,), "norm": (DIM,),
        "tok_embeddings": (ROWS, DIM), "lm_head": (ROWS, DIM),
    }  # fmt: skip
    found = {}
    for name in NAMES:
        shape = rows[name.split(".")[-2]]
        for layer in range(LAYERS) if "{}" in name else [0]:
            found[name.format(layer)] = shape
    if tied:
        del found["lm_head.weight"]
    return found


def theta_in(folder: Path, *, tied: bool = False) -> Path:
    values = {
        name: torch.arange(float(torch.Size(shape).numel())).reshape(shape) + number
        for number, (name, shape) in enumerate(shapes(tied=tied).items())
    }
    save_file(values, folder / "theta.safetensors")
    return folder / "theta.safetensors"


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_goes_over_as_it_is_under_their_name(tmp_path: Path, tied: bool) -> None:
    theta = theta_in(tmp_path, tied=tied)
    folder = export(theta, tmp_path / "out", facts=FACTS, tokenizer=None)
    ours, theirs = load_file(theta), load_file(folder / MODEL)
    assert set(theirs) == {their_name(name) for name in ours}
    assert ("lm_head.weight" in theirs) is not tied
    for name, tensor in ours.items():
        assert torch.equal(theirs[their_name(name)], tensor)
    told = json.loads((folder / CONFIG).read_text())
    assert (told["vocab_size"], told["hidden_size"], told["head_dim"]) == (ROWS, DIM, HEAD_DIM)
    assert (told["num_attention_heads"], told["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert (told["num_hidden_layers"], told["intermediate_size"]) == (LAYERS, HIDDEN)
    assert told["tie_word_embeddings"] is tied
    assert not list(folder.glob("*.part"))


def test_names_of_other_models_are_refused() -> None:
    with pytest.raises(StateError, match=r"tensor layers\.0\.moe\.w1 has no name in transformers"):
        their_name("layers.0.moe.w1")
    found = shapes()
    del found["layers.0.attention.q_norm.weight"]
    with pytest.raises(StateError, match=r"not those of a dense qwen3 .*q_norm.*only Qwen3"):
        architecture(found, DECODER)


def test_a_family_that_the_tensors_are_not_of_is_refused() -> None:
    found = shapes()
    with pytest.raises(StateError, match=r"not those of a dense llama3 \(looked for .*is there"):
        architecture(found, Decoder("llama3", 64, head_dim=HEAD_DIM))
    bare = {name: shape for name, shape in found.items() if not name.endswith("_norm.weight")}
    with pytest.raises(StateError, match=r"not those of a dense qwen3 \(looked for .*q_norm"):
        architecture(bare, DECODER)


def test_what_is_there_of_this_theta_is_not_written_again(tmp_path: Path) -> None:
    theta = theta_in(tmp_path)
    folder = export(theta, tmp_path / "out", facts=FACTS, tokenizer=None)
    before = (folder / MODEL).stat().st_ino
    export(theta, folder, facts=FACTS, tokenizer=None)
    assert (folder / MODEL).stat().st_ino == before
    other = Facts(DECODER, round=4, state_hash="b" * 64, end_of_document=0)
    export(theta, folder, facts=other, tokenizer=None)
    assert (folder / MODEL).stat().st_ino != before


def test_an_export_without_tokenizer_is_made_whole_once_there_is_one(tmp_path: Path) -> None:
    theta = theta_in(tmp_path)
    folder = export(theta, tmp_path / "out", facts=FACTS, tokenizer=None)
    tokenizer = tmp_path / huggingface.TOKENIZER
    tokenizer.write_text('{"added_tokens": []}')
    export(theta, folder, facts=FACTS, tokenizer=tokenizer)
    assert (folder / huggingface.TOKENIZER).read_bytes() == tokenizer.read_bytes()


def test_an_export_tokenises_nothing(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    config = compose(["data=text", "data.files=[own.txt]", f"data.roots=[{tmp_path}]"])
    (tmp_path / "own.txt").write_text("alpha beta gamma\n" * 2000)
    assert exporting._tokenizer(config) == (None, None)
    assert "the export has no tokenizer: corpus 'text' is not tokenised" in caplog.text
    assert not (tmp_path / config.data.cache).exists()


def test_a_full_disk_leaves_no_folder_that_looks_complete(tmp_path: Path, monkeypatch) -> None:
    theta = theta_in(tmp_path)
    folder = export(theta, tmp_path / "out", facts=FACTS, tokenizer=None)
    assert (folder / CONFIG).exists()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    newer = Facts(DECODER, round=4, state_hash="b" * 64)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StateError, match=r"export cannot be written .*No space left .*export"):
            export(theta, folder, facts=newer, tokenizer=None)
    assert not (folder / CONFIG).exists()
    export(theta, folder, facts=newer, tokenizer=None)
    assert (folder / CONFIG).exists()


def test_a_resnet_is_not_exported() -> None:
    model = compose(["model=resnet18"]).model
    with pytest.raises(StateError, match=r"^model=resnet18 cannot be exported for .*names$"):
        exporting._kind(model, Path("here.x"), None)


def test_a_damaged_theta_is_named(tmp_path: Path) -> None:
    theta = theta_in(tmp_path)
    theta.write_bytes(theta.read_bytes()[:-1])
    with pytest.raises(StateError, match=r"theta\.safetensors cannot be exported: .*cut off"):
        export(theta, tmp_path / "out", facts=FACTS, tokenizer=None)


# ------------------------------------------------------------------------------------- of a run


@pytest.fixture
def run(tmp_path: Path, monkeypatch):
    """A complete run of one replica, which has no Qwen3 but three tensors of its own."""
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    ranks = alone()
    lone = Lone(tmp_path / "run", ranks)
    lone.train()
    paths.freeze(compose(["run.name=run"]), lone.run)
    yield lone.run
    ranks.close()


def test_the_command_says_what_it_did(run: Path, monkeypatch, capsys) -> None:
    asked = {}

    def told(theta: Path, folder: Path, *, facts: Facts, tokenizer: Path | None) -> Path:
        asked.update(theta=theta, folder=folder, round=facts.round, tokenizer=tokenizer)
        return folder

    monkeypatch.setattr(exporting, "export", told)
    monkeypatch.setattr(exporting, "_tokenizer", lambda config: (None, None))
    assert command.main([str(run)]) == 0
    assert asked["folder"] == run / "export"
    assert asked["round"] == 6
    assert asked["theta"] == run / "central/generations/round-000006/theta.safetensors"
    assert f"export {paths.shown(run / 'export')}" in capsys.readouterr().out
    (run / "final").mkdir()
    (run / "final" / "theta.safetensors").touch()
    assert command.main([str(run)]) == 0
    assert asked["folder"] == run / "final"
    assert command.main([str(run), f"out={run / 'there'}"]) == 0
    assert asked["folder"] == run / "there"


def test_a_model_that_is_not_known_is_a_sentence(run: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(exporting, "_tokenizer", lambda config: (None, None))
    assert command.main([str(run)]) == 1
    assert "has no name in transformers" in capsys.readouterr().err
    generation = exporting.Generations(run / "central/generations").open("round-000006")
    config = compose(["run.name=run"])
    line = exporting.export_final(config, run, generation)
    assert line.startswith("export   none: tensor ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["a", "b"], "2 run folders: name exactly one, such as outputs/RUN"),
        (["out=x"], "0 run folders"),
        (["a", "into=x"], "into=x: no such word; there are RUN and out=FOLDER"),
        (["a", "out="], "out=: one folder"),
    ],
)
def test_words_that_are_not_understood(words: list[str], told: str, capsys) -> None:
    assert command.main(words) == 2
    assert told in capsys.readouterr().err


def test_a_folder_without_theta_is_refused(tmp_path: Path, capsys) -> None:
    assert command.main([str(tmp_path)]) == 1
    assert "holds no theta_outer: name the folder of a central" in capsys.readouterr().err
    assert command.main(["--help"]) == 0
    assert "from_pretrained" in capsys.readouterr().out
    assert command.main([]) == 2


@pytest.mark.parametrize("inside", ["central", "central/generations", "final/../central/x"])
def test_the_ledgers_folder_is_not_written_to(run: Path, inside: str, capsys) -> None:
    (run / "final").mkdir(exist_ok=True)
    before = sorted(run.rglob("*"))
    assert command.main([str(run), f"out={run / inside}"]) == 1
    told = capsys.readouterr().err
    assert f"out={run / inside} is in {run / 'central'}, where the ledger of a run" in told
    assert "name another folder" in told
    assert sorted(run.rglob("*")) == before


def test_another_runs_ledger_is_left_alone_as_well(run: Path, tmp_path: Path, capsys) -> None:
    from pww.central.ledger import FILE

    other = tmp_path / "other" / "central"
    other.mkdir(parents=True)
    (other / FILE).write_bytes(b"")
    (tmp_path / "link").symlink_to(other)
    for out in (other, other / "generations" / "x", tmp_path / "link" / "x"):
        assert command.main([str(run), f"out={out}"]) == 1
        told = capsys.readouterr().err
        assert f"out={out} is in {other}, where the ledger of a run and its generations" in told
    assert [path.name for path in other.iterdir()] == [FILE]
    command.main([str(run), f"out={tmp_path / 'other'}"])
    assert "where the ledger of" not in capsys.readouterr().err, "beside it there is room"


def test_a_run_without_rounds_has_nothing_to_export(run: Path, capsys) -> None:
    from pww.central.ledger import FILE, Ledger

    ledger = Ledger(run / "central" / FILE)
    with ledger.transaction() as books:
        books.execute("UPDATE run SET generation = ''")
    ledger.close()
    assert command.main([str(run)]) == 1
    assert "has no theta yet: export it after the first round" in capsys.readouterr().err


def test_a_tokenizer_that_is_not_the_corpus_is_left_out(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(paths, "PROJECT", tmp_path)
    from pww.data.manifest import TOOL, Manifest

    made = Manifest(
        tool=TOOL, corpus="c" * 64, tokenizer="d" * 64, window_tokens=65, dtype="uint16",
        vocab_size=300, padded_vocab=512, end_of_document=7, num_documents=1, num_empty=0,
        num_tokens=650, num_windows=9, num_held_out=1, num_left_out=0, tail_tokens=0, shards=(),
        held_out=(),
    )  # fmt: skip
    (tmp_path / "manifest.json").write_bytes(made.to_json())
    config = compose(["central.manifest=manifest.json"])
    manifest, tokenizer = exporting._tokenizer(config)
    assert (manifest, tokenizer) == (made, None)
    assert "copy tokenizer.json there" in caplog.text
    (tmp_path / huggingface.TOKENIZER).write_text("{}")
    assert exporting._tokenizer(config) == (made, None)
    assert "is not the corpus'" in caplog.text
    config = compose(["central.manifest=gone.json"])
    assert exporting._tokenizer(config) == (None, None)
