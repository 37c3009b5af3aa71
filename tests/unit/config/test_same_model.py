"""Models whose tensors are alike and that are not one model."""

import json
from pathlib import Path

from pww.config.load import compose
from pww.config.same_model import architecture


def of(*words: str) -> str:
    return architecture(compose(list(words)).model)


def test_heads_differ_where_shapes_do_not() -> None:
    debug = of("model=llama3_debug", "model.num_heads=4", "model.head_dim=16")
    assert debug != of("model=llama3_debug", "model.num_heads=2", "model.head_dim=32")
    assert of() != of("model.tie_embeddings=false")
    gpt2 = of("model=hf/gpt2")
    assert gpt2 != of("model=hf/gpt2", "model.changes.n_head=6")
    assert len({debug, gpt2, of()}) == 3


def test_labels_and_what_a_machine_computes_in_may_differ() -> None:
    assert of() == of("model.name=other", "model.dtype=bf16", "model.vocab_multiple=64")


def test_a_folder_counts_by_what_it_says(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 4}))
    words = ("model=hf/folder",)
    assert of(*words, f"model.config={one}") == of(*words, f"model.config={two}")
    (two / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2}))
    assert of(*words, f"model.config={one}") != of(*words, f"model.config={two}")
    assert of(*words, f"model.config={tmp_path / 'gone'}") == ""
