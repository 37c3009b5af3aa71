"""Our models as `transformers` knows them: names, config, the order of rows.

Sizes of torchtitan's dense decoders are read off the tensors; only what no shape tells comes from
the configuration. Torchtitan's Llama turns neighbouring pairs of a head's rows by their position,
transformers' the two halves of a head; so the rows of its queries and keys are sorted anew. Qwen3
turns halves on both sides.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import torch

from pww.errors import StateError

Shapes = Mapping[str, tuple[int, ...]]
Family = Literal["qwen3", "llama3"]

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
TURNED = ("attention.qkv_linear.wq.weight", "attention.qkv_linear.wk.weight")
_NUMBER = re.compile(r"(?<=^layers\.)\d+(?=\.)")
QWEN3_ROPE_THETA, QWEN3_EPS = 1e6, 1e-6
LLAMA3_ROPE_THETA, LLAMA3_EPS = 5e5, 1e-5
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
"""Llama 3.1's longer reach, as torchtitan scales it."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Which decoder it is; `head_dim` is a Llama's, which no shape tells."""

    family: Family
    seq_len: int
    head_dim: int = 0


@dataclass(frozen=True, slots=True)
class OwnModel:
    """A model that transformers has made itself: names and rows are its own already."""

    config: Mapping[str, Any]  # its config.json
    prefix: str  # what stands before its names


Kind = Decoder | OwnModel


def their_name(name: str) -> str:
    """What transformers calls a tensor.

    Raises:
        StateError: the table does not know it.
    """
    number = _NUMBER.search(name)
    known = NAMES.get(_NUMBER.sub("{}", name))
    if known is None:
        raise StateError(
            f"tensor {name} has no name in transformers that is known here: only dense Qwen3 and "
            "Llama 3 models can be exported; theta.safetensors is what the run made"
        )
    return known if number is None else known.format(number.group())


def their_names(shapes: Shapes, kind: Kind) -> dict[str, str]:
    """Every tensor's name there; the one weight of a tied model is the embedding's."""
    if isinstance(kind, OwnModel):
        return {name: name.removeprefix(kind.prefix) for name in shapes}
    names = {name: their_name(name) for name in shapes}
    if EMBEDDING not in names and HEAD in names:
        names[HEAD] = NAMES[EMBEDDING]
    return names


def their_rows(name: str, tensor: torch.Tensor, decoder: Kind) -> torch.Tensor:
    """A tensor with its rows in their order."""
    if isinstance(decoder, OwnModel) or decoder.family == "qwen3" or not name.endswith(TURNED):
        return tensor
    rows, dim = tensor.shape
    pairs = tensor.view(rows // decoder.head_dim, decoder.head_dim // 2, 2, dim)
    return pairs.transpose(1, 2).reshape(rows, dim)


def architecture(shapes: Shapes, decoder: Kind) -> dict[str, Any]:
    """`config.json` of a model with these tensors; it names no token.

    Raises:
        StateError: it is none that is known here.
    """
    if isinstance(decoder, OwnModel):
        return {**decoder.config, "torch_dtype": "float32"}
    names = their_names(shapes, decoder)
    layer = {n.removeprefix(LAYER): shape for n, shape in shapes.items() if n.startswith(LAYER)}
    try:
        rows, dim = shapes[EMBEDDING if EMBEDDING in shapes else HEAD]
        queries, keys = (layer[name][0] for name in TURNED)
        hidden = layer["feed_forward.w1.weight"][0]
        normed = layer.get("attention.q_norm.weight", (0,))[0]  # the size of a head; Qwen3 only
        if bool(normed) != (decoder.family == "qwen3"):
            raise KeyError("attention.q_norm.weight" + (", which is there" if normed else ""))
        head_dim = normed or decoder.head_dim
    except (KeyError, ValueError) as why:
        raise StateError(
            f"the tensors are not those of a dense {decoder.family} (looked for {why}): only Qwen3 "
            "and Llama 3 can be exported; theta.safetensors is what the run made"
        ) from why
    return {
        "vocab_size": rows,
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": 1 + max(int(n[0]) for n in map(_NUMBER.findall, shapes) if n),
        "num_attention_heads": queries // head_dim,
        "num_key_value_heads": keys // head_dim,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": decoder.seq_len,
        "tie_word_embeddings": len(names.keys() & {EMBEDDING, HEAD}) == 1,
        "torch_dtype": "float32",
        **_family(decoder.family),
    }


def _family(family: Family) -> dict[str, Any]:
    """What all of a family have; rotary embeddings twice, for transformers 4 and for 5."""
    match family:
        case "qwen3":
            rope = {"rope_type": "default", "rope_theta": QWEN3_ROPE_THETA}
            return {
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                "use_sliding_window": False, "rms_norm_eps": QWEN3_EPS,
                "rope_theta": QWEN3_ROPE_THETA, "rope_parameters": rope,
            }  # fmt: skip
        case "llama3":
            return {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama",
                "mlp_bias": False, "rms_norm_eps": LLAMA3_EPS,
                "rope_theta": LLAMA3_ROPE_THETA, "rope_scaling": LLAMA3_ROPE,
                "rope_parameters": {**LLAMA3_ROPE, "rope_theta": LLAMA3_ROPE_THETA},
            }  # fmt: skip
        case _:
            assert_never(family)
