"""An exported theta, loaded by transformers, is the model that torchtitan trained."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "integration" / "programs"))

from reference_qwen3 import logits, state_of
from tiny import PADDED, SEQ_LEN, TinyCorpus

from pww.central.architecture import QWEN3_EPS, QWEN3_ROPE_THETA, Decoder
from pww.central.huggingface import Facts, export
from pww.data.tokenizer import train_bpe
from pww.trainer.titan import TitanTrainer
from pww.transport.payload import write_theta

transformers = pytest.importorskip(
    "transformers", reason="transformers (in the dev extra) is not installed: exports go unchecked"
)
FACTS = Facts(Decoder("qwen3", SEQ_LEN), round=7, state_hash="a" * 64, end_of_document=0)


def exported(trainer: TitanTrainer, folder: Path, tokenizer: Path | None = None) -> Path:
    theta = folder / "theta.safetensors"
    write_theta(theta, trainer.tensors(), trainer.shapes())
    return export(theta, folder / "out", facts=FACTS, tokenizer=tokenizer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("tied", [True, False])
def test_its_logits_are_ours(build: Callable[..., Any], tmp_path: Path, tied: bool) -> None:
    # norms start at 1 and a small model says little: larger weights, so that a mistake shows
    trainer = build({"model.tie_embeddings": tied, "model.num_layers": 3})
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in trainer._model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.add_(torch.randn(local.shape) * 0.2)
    tokens = torch.from_numpy(np.asarray(TinyCorpus().windows([3, 5, 8]))[:, :-1].copy())
    state = state_of(dict(trainer.tensors()))
    with torch.no_grad():
        ours = trainer._model(tokens).float()
        truth = logits(state, tokens, heads=4, kv_heads=2, layers=3)
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            exported(trainer, tmp_path), output_loading_info=True, torch_dtype=torch.float32
        )
        theirs = model(tokens).logits
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert ours.shape == theirs.shape == (3, SEQ_LEN, PADDED)
    assert float(truth.std()) > 1, "logits that differ"
    assert float((theirs - ours).abs().max()) < 1e-4
    assert float((theirs.double() - truth).abs().max()) < 1e-4
    assert model.config.vocab_size == PADDED, "padded rows are kept"
    assert model.config.tie_word_embeddings is tied
    assert sum(p.numel() for p in model.parameters()) == sum(
        np.prod(shape) for shape in trainer.shapes().values()
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("tied", [True, False])
def test_llamas_rows_are_sorted_for_halves(tmp_path: Path, tied: bool) -> None:
    """Against torchtitan's Llama 3, whose rotary embedding turns neighbours."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import llama3_configs

    made = llama3_configs["debugmodel"]("flex")
    made.enable_weight_tying = tied
    made.layers = made.layers[:2]
    for layer in made.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    attention = made.layers[0].attention
    heads, kv_heads = attention.n_heads, attention.n_kv_heads or attention.n_heads
    head_dim = made.dim // heads
    torch.manual_seed(4)
    model = made.build()
    with torch.no_grad():
        for buffer in model.buffers():
            assert buffer.shape  # the rotary table, made on building
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.5 if "norm" in name else 0.08))
    tensors = _split(dict(model.named_parameters()), heads, kv_heads, head_dim)
    theta = tmp_path / "theta.safetensors"
    write_theta(theta, list(tensors.items()), {n: tuple(t.shape) for n, t in tensors.items()})
    decoder = Decoder("llama3", 64, head_dim)
    folder = export(theta, tmp_path / "out", facts=Facts(decoder, 1, "b" * 64), tokenizer=None)
    tokens = torch.randint(0, made.vocab_size, (2, 48))
    with torch.no_grad():
        ours = model(tokens).float()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
    assert float(ours.std()) > 0.1
    assert float((theirs - ours).abs().max()) < 1e-4


def _split(
    tensors: dict[str, torch.Tensor], heads: int, kv_heads: int, head_dim: int
) -> dict[str, torch.Tensor]:
    """A fused projection in three, each group of rows: its queries, its key, its value."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "wqkv" not in name:
            found[name] = tensor.detach().clone()
            continue
        dim = tensor.shape[1]
        grouped = tensor.detach().view(kv_heads, heads // kv_heads + 2, head_dim, dim)
        parts = {"wq": grouped[:, :-2], "wk": grouped[:, -2], "wv": grouped[:, -1]}
        for part, rows in parts.items():
            found[name.replace("wqkv", part)] = rows.reshape(-1, dim).clone()
    return found


def test_the_constants_are_the_models() -> None:
    from pww.trainer.titan_model import NORM_EPS, ROPE_THETA

    assert (ROPE_THETA, NORM_EPS) == (QWEN3_ROPE_THETA, QWEN3_EPS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_its_tokenizer_is_the_runs(build: Callable[..., Any], tmp_path: Path) -> None:
    text = "one two three two one; two and two are four, and so on and so on"
    tokenizer = train_bpe([text] * 3, vocab_size=300)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer.json)
    folder = exported(build(), tmp_path, path)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode([text])[0].tolist()
    assert theirs.decode(theirs.encode(text)) == text
    assert theirs.eos_token_id == tokenizer.end == 0
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == 0
