"""theta_outer as Hugging Face's `transformers` loads it: its names, its config, the tokenizer.

    model.safetensors        theta under their names, fp32, one tensor after the other
    tokenizer.json           the run's, and tokenizer_config.json that names its end of document
    config.json              the architecture; written last, so that a folder with it is complete

Sizes are read off the tensors; only what no shape tells comes from the configuration. Padded rows
of the vocabulary stay: `vocab_size` is the padded one. A tied model has no `lm_head.weight`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pww.errors import PayloadError, StateError
from pww.folder import write_durably
from pww.transport.tensorfile import TensorReader, TensorWriter

Shapes = Mapping[str, tuple[int, ...]]

NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "layers.{}.attention.qkv_linear.wq.weight": "model.layers.{}.self_attn.q_proj.weight",
    "layers.{}.attention.qkv_linear.wk.weight": "model.layers.{}.self_attn.k_proj.weight",
    "layers.{}.attention.qkv_linear.wv.weight": "model.layers.{}.self_attn.v_proj.weight",
    "layers.{}.attention.wo.weight": "model.layers.{}.self_attn.o_proj.weight",
    "layers.{}.attention.q_norm.weight": "model.layers.{}.self_attn.q_norm.weight",
    "layers.{}.attention.k_norm.weight": "model.layers.{}.self_attn.k_norm.weight",
    "layers.{}.feed_forward.w1.weight": "model.layers.{}.mlp.gate_proj.weight",
    "layers.{}.feed_forward.w2.weight": "model.layers.{}.mlp.down_proj.weight",
    "layers.{}.feed_forward.w3.weight": "model.layers.{}.mlp.up_proj.weight",
    "layers.{}.attention_norm.weight": "model.layers.{}.input_layernorm.weight",
    "layers.{}.ffn_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
"""Torchtitan's names of a dense decoder, and what transformers calls the same tensor."""
EMBEDDING, HEAD = "tok_embeddings.weight", "lm_head.weight"
LAYER = "layers.0."
_NUMBER = re.compile(r"(?<=^layers\.)\d+(?=\.)")
MODEL, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
QWEN3_ROPE_THETA, QWEN3_EPS = 1e6, 1e-6


@dataclass(frozen=True, slots=True)
class Facts:
    """What shapes do not tell."""

    seq_len: int
    round: int
    state_hash: str
    end_of_document: int | None = None  # token id


def export(theta: Path, folder: Path, *, facts: Facts, tokenizer: Path | None) -> Path:
    """Writes `folder` from a theta file; complete once this returns, safe to repeat.

    Memory: the largest tensor. What is there already of the same theta is not written again.

    Raises:
        StateError: theta is not of an architecture that is known here, or is damaged, or the disk
            refused.
    """
    try:
        with TensorReader(theta) as reader:
            shapes = {name: reader.shape(name) for name in reader.names}
            config = architecture(shapes, facts)
            told = _text(config)
            if _is_there(folder, facts, config=told):
                return folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).unlink(missing_ok=True)
            _write_model(reader, folder / MODEL, facts)
            if tokenizer is not None:
                _write_tokenizer(tokenizer, folder, facts)
            write_durably(folder / CONFIG, told)
    except PayloadError as why:
        raise StateError(f"{theta} cannot be exported: {why}") from why
    except OSError as why:
        raise StateError(
            f"the export cannot be written to {folder}: {why}. Nothing else is touched: make room, "
            "or name another folder, and export again"
        ) from why
    return folder


def their_name(name: str) -> str:
    """What transformers calls a tensor.

    Raises:
        StateError: the table does not know it.
    """
    number = _NUMBER.search(name)
    known = NAMES.get(_NUMBER.sub("{}", name))
    if known is None:
        raise StateError(
            f"tensor {name} has no name in transformers that is known here: only dense Qwen3 models"
            " can be exported; theta.safetensors is what the run made"
        )
    return known if number is None else known.format(number.group())


def architecture(shapes: Shapes, facts: Facts) -> dict[str, Any]:
    """`config.json` of a model with these tensors.

    Raises:
        StateError: it is none that is known here.
    """
    for name in shapes:
        their_name(name)
    one = {n.removeprefix(LAYER): shape for n, shape in shapes.items() if n.startswith(LAYER)}
    try:
        rows, dim = shapes[EMBEDDING] if EMBEDDING in shapes else shapes[HEAD]
        (head_dim,) = one["attention.q_norm.weight"]
        queries, keys = (one[f"attention.qkv_linear.{w}.weight"][0] for w in ("wq", "wk"))
        hidden = one["feed_forward.w1.weight"][0]
    except (KeyError, ValueError) as why:
        raise StateError(
            f"the tensors are not those of a dense Qwen3 (looked for {why}), the only architecture "
            "that can be exported; theta.safetensors is what the run made"
        ) from why
    end = {} if facts.end_of_document is None else {
        "bos_token_id": facts.end_of_document, "eos_token_id": facts.end_of_document,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": rows,
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": 1 + max(int(n[0]) for n in map(_NUMBER.findall, shapes) if n),
        "num_attention_heads": queries // head_dim,
        "num_key_value_heads": keys // head_dim,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "rms_norm_eps": QWEN3_EPS,
        # one for transformers 4, one for 5
        "rope_theta": QWEN3_ROPE_THETA,
        "rope_parameters": {"rope_theta": QWEN3_ROPE_THETA, "rope_type": "default"},
        "max_position_embeddings": facts.seq_len,
        "tie_word_embeddings": not (EMBEDDING in shapes and HEAD in shapes),
        "torch_dtype": "float32",
        **end,
    }


def _write_model(reader: TensorReader, path: Path, facts: Facts) -> None:
    names = {name: their_name(name) for name in reader.names}
    if EMBEDDING not in names:  # a tied one that is known by its head
        names[HEAD] = NAMES[EMBEDDING]
    layout = {theirs: (torch.float32, reader.shape(name)) for name, theirs in names.items()}
    told = {"format": "pt", "round": str(facts.round), "state_hash": facts.state_hash}
    with TensorWriter(path, layout, told, hashed=False) as writer:
        for name, theirs in names.items():
            writer.add(theirs, reader.get(name))


def _is_there(folder: Path, facts: Facts, *, config: bytes) -> bool:
    """Whether a complete export of this theta is in `folder`."""
    try:
        if (folder / CONFIG).read_bytes() != config:
            return False
        with TensorReader(folder / MODEL) as reader:
            return reader.metadata.get("state_hash") == facts.state_hash
    except (OSError, PayloadError):
        return False


def _write_tokenizer(path: Path, folder: Path, facts: Facts) -> None:
    """The tokenizer, and which of its tokens ends a document."""
    data = path.read_bytes()
    write_durably(folder / TOKENIZER, data)
    try:
        added = json.loads(data)["added_tokens"]
        end = next(one["content"] for one in added if one["id"] == facts.end_of_document)
    except (ValueError, KeyError, TypeError, StopIteration):
        return  # transformers finds what it needs in tokenizer.json all the same
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": end}
    write_durably(folder / "tokenizer_config.json", _text(told))


def _text(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, indent=2).encode() + b"\n"
