"""Models of `transformers`: what is refused, what is built. Skipped where it is not installed."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config

from pww.config.schema import Config, HfModel
from pww.errors import ConfigError
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_model import model_spec

SMALL = {"n_layer": 1, "n_embd": 16, "n_head": 2}
CALM = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed (pip install 'pww[hf]')",
)


def hf(config: str, changes: dict[str, Any] | None = None, **over: Any) -> HfModel:
    values = {
        "kind": "hf", "name": "x", "config": config, "changes": changes or {}, "seq_len": 16,
        "tie_embeddings": True, "vocab_multiple": 256, "dtype": "fp32", **over,
    }  # fmt: skip
    return HfModel.model_validate(values)


def refused(model: HfModel) -> str:
    with pytest.raises(ConfigError) as fault:
        model_spec(model, padded_vocab=256, gloo=True)
    return "\n".join(fault.value.faults)


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused(hf("gpt2")).startswith("model=x: needs transformers (")
    assert refused(hf("gpt2")).endswith("; pip install 'pww[hf]'")


@needs_transformers
def test_what_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    text = refused(hf("gtp2"))
    assert text.startswith("model.config=gtp2: transformers ")
    assert text.endswith("such as gpt2 or llama, or a folder with a config.json")
    assert refused(hf("gpt2", {**CALM, "n_layers": 1})) == (
        "model.changes.n_layers: gpt2 has no such option; did you mean n_layer?"
    )
    assert "No such file" in refused(hf(str(tmp_path)))
    (tmp_path / "config.json").write_text("{")
    assert "Expecting property name" in refused(hf(str(tmp_path)))


@needs_transformers
def test_what_would_train_something_else_is_refused() -> None:
    assert refused(hf("gpt2", {**CALM, **SMALL, "n_positions": 8})) == (
        "model.seq_len=16: gpt2 has 8 positions; use fewer tokens, or change that number in "
        "model.changes"
    )
    text = refused(hf("gpt2", {**SMALL, "embd_pdrop": 0.0}))
    assert text.startswith("model.config=gpt2: it drops activations out at random")
    assert "attn_pdrop" in text
    assert "embd_pdrop" not in text


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "t5",
            "transformers builds no causal model with torch's attention from it (Unrec",
        ),
        (
            "bloom",
            "transformers builds no causal model with torch's attention from it (Bl",
        ),
        ("gemma3", "its vocabulary stays 262208 where the corpus has 256 (padded): it is made of "),
    ],
)
def test_what_transformers_builds_otherwise_is_refused(kind: str, told: str) -> None:
    assert refused(hf(kind)).startswith(f"model.config={kind}: {told}")


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("mixtral", "num_local_experts=8"),
        ("qwen2_moe", "num_experts=60"),
        ("deepseek_v3", "n_shared_experts=1, n_routed_experts=256"),
        ("dbrx", "moe_num_experts=4"),
    ],
)
def test_a_mixture_of_experts_is_refused(kind: str, told: str) -> None:
    name = told.split(", ")[-1]
    text = refused(hf(kind, tie_embeddings=kind != "dbrx"))
    assert text.startswith(f"model.config={kind}: a mixture of experts (")
    assert name in text
    assert text.endswith(
        "): there is no router loss here that would keep them in even use, and its operations "
        "would be counted wrongly; use a dense model type, such as llama or qwen3"
    )


@needs_transformers
def test_one_expert_is_a_dense_model() -> None:
    changes = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 16, "num_local_experts": 1,
        "num_experts_per_tok": 1,
    }  # fmt: skip
    model_spec(hf("mixtral", changes), padded_vocab=256, gloo=True)


@needs_transformers
def test_tying_that_a_model_takes_no_notice_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2LMHeadModel

    monkeypatch.setattr(GPT2LMHeadModel, "tie_weights", lambda self, *_, **more: None)
    assert refused(hf("gpt2", {**SMALL, **CALM})) == (
        "model.config=gpt2: it takes no notice of model.tie_embeddings=true; use "
        "model.tie_embeddings=false"
    )


@needs_transformers
def test_sizes_follow_from_the_changes_and_from_a_folder(tmp_path: Path) -> None:
    changes = {
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "intermediate_size": 48,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama", "vocab_size": 9, "pad_token_id": 0,
                "tie_word_embeddings": True, **changes,
            }
        )
    )  # fmt: skip
    for model in (hf("llama", changes), hf(str(tmp_path))):
        spec = model_spec(model, padded_vocab=512, gloo=True)
        with torch.device("meta"):
            built = spec.model.build()
        shapes = {n.removeprefix("model."): tuple(p.shape) for n, p in built.named_parameters()}
        assert shapes["model.embed_tokens.weight"] == (512, 32)  # no row of it is padding
        assert built.model.get_input_embeddings().padding_idx is None
        assert shapes["model.layers.0.self_attn.q_proj.weight"] == (32, 32)
        assert shapes["model.layers.0.self_attn.k_proj.weight"] == (16, 32)
        assert "lm_head.weight" not in shapes


@needs_transformers
def test_a_folder_that_ties_its_embeddings_otherwise_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))
    assert refused(hf(str(tmp_path), tie_embeddings=False)) == (
        f"model.tie_embeddings=false: the model in {tmp_path} has its embedding as output layer; "
        "give model.tie_embeddings=true, or change tie_word_embeddings in its config.json"
    )
    file.write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))  # llama's own: not tied
    assert refused(hf(str(tmp_path))).startswith(
        f"model.tie_embeddings=true: the model in {tmp_path} has an output layer of its own; give"
    )


@needs_transformers
def test_gpt2_has_the_published_size() -> None:
    model = hf("gpt2", CALM, seq_len=1024)
    spec = model_spec(model, padded_vocab=50257, gloo=True)
    with torch.device("meta"):
        built = spec.model.build()
    assert sum(p.numel() for p in built.parameters()) == 124_439_808
    num, flops = spec.model.get_nparams_and_flops(built, 1024)
    assert (num, flops) == (124_439_808, 6 * 124_439_808)


@needs_transformers
def test_a_model_that_sees_what_it_should_predict_is_refused(
    build: Callable[..., TitanTrainer], ranks: Any
) -> None:
    from tiny import TinyCorpus

    changes = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    tree = tiny_config().model_dump()
    tree["model"] = hf("bert", changes).model_dump()
    with pytest.raises(ConfigError, match=r"model\.config=bert: it sees the tokens that it should"):
        TitanTrainer(Config.model_validate(tree), TinyCorpus(), ranks=ranks)
