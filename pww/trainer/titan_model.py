"""Configured models as torchtitan's model specs, with our vocabulary; Qwen3's own layers are here.

Departures from the shipped flavours. Q, K and V are separate (a fused one has other names in
`state_dict` than in `named_parameters`, and is gathered whole to be split). Every initial tensor is
drawn as `titan_init` says, so theta(0) does not depend on the number of ranks.

Attention is torch's SDPA everywhere, causal over the whole window: documents inside it see each
other. Import after `titan_cpu.install`.
"""

from dataclasses import dataclass
from typing import Any, Literal, assert_never

from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.llama3 import llama3_configs, parallelize_llama
from torchtitan.models.qwen3 import parallelize_qwen3, qwen3_configs
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec

from pww.config.schema import CustomModel, HfModel, ShippedModel
from pww.trainer.titan_cpu import gloo_safe
from pww.trainer.titan_init import LINEAR, NORM

ROPE_THETA = 1e6
NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that make a dense Qwen3 or Llama 3."""

    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_dim: int
    max_seq_len: int


def sizes(model: CustomModel | ShippedModel) -> Sizes:
    """The sizes of a configured model; those of a shipped flavour are read from torchtitan."""
    match model:
        case CustomModel():
            return Sizes(
                dim=model.dim,
                num_layers=model.num_layers,
                num_heads=model.num_heads,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                hidden_dim=model.hidden_dim,
                max_seq_len=model.seq_len,
            )
        case ShippedModel():
            registry = {"qwen3": qwen3_configs, "llama3": llama3_configs}[model.family]
            shipped = registry[model.flavor]("flex")
            attention, feed_forward = shipped.layers[0].attention, shipped.layers[0].feed_forward
            return Sizes(
                dim=shipped.dim,
                num_layers=len(shipped.layers),
                num_heads=attention.n_heads,
                num_kv_heads=attention.n_kv_heads or attention.n_heads,
                head_dim=attention.head_dim or shipped.dim // attention.n_heads,
                hidden_dim=feed_forward.w1.out_features,
                max_seq_len=attention.rope.max_seq_len,
            )
        case _:
            assert_never(model)


def model_spec(
    model: CustomModel | ShippedModel | HfModel, *, padded_vocab: int, gloo: bool, seed: int = 0
) -> "ModelSpec":
    """A fresh spec (torchtitan changes the one that it is given); `gloo`: for ranks on CPUs.

    `seed` is for models of `transformers`, which draw their weights themselves; the others draw
    from the generator that torchtitan seeds.

    Raises:
        ConfigError: `transformers` is not installed, or cannot build such a model.
    """
    if isinstance(model, HfModel):
        from pww.trainer import titan_hf

        config = titan_hf.model_config(model, padded_vocab=padded_vocab, seed=seed)
        return _spec("hf", model.name, config, titan_hf.parallelize, gloo=gloo)
    tied = model.tie_embeddings
    match model.family:
        case "qwen3":
            config = _decoder(sizes(model), vocab=padded_vocab, tied=tied)
            return _spec("qwen3", model.name, config, parallelize_qwen3, gloo=gloo)
        case "llama3":
            from pww.trainer.titan_llama import decoder

            config = decoder(sizes(model), vocab=padded_vocab, tied=tied)
            return _spec("llama3", model.name, config, parallelize_llama, gloo=gloo)
        case _:
            assert_never(model.family)


def _spec(
    family: Literal["qwen3", "llama3", "hf"], name: str, model: Any, parallelize: Any, *, gloo: bool
) -> "ModelSpec":
    return ModelSpec(
        name=family,
        flavor=name,
        model=model,
        parallelize_fn=gloo_safe(parallelize) if gloo else parallelize,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


def _decoder(s: Sizes, *, vocab: int, tied: bool) -> Any:
    rope = CosSinRoPE.Config(dim=s.head_dim, max_seq_len=s.max_seq_len, theta=ROPE_THETA)
    layers = [
        Qwen3TransformerBlock.Config(
            attention_norm=_norm(s.dim),
            ffn_norm=_norm(s.dim),
            attention=make_gqa_config(
                dim=s.dim,
                n_heads=s.num_heads,
                n_kv_heads=s.num_kv_heads,
                head_dim=s.head_dim,
                wqkv_param_init=LINEAR,
                wo_param_init=LINEAR,
                inner_attention=ScaledDotProductAttention.Config(),
                fuse_qkv=False,
                rope=rope,
                qk_norm=_norm(s.head_dim),
            ),
            feed_forward=make_ffn_config(
                dim=s.dim,
                hidden_dim=s.hidden_dim,
                w1_param_init=LINEAR,
                w2w3_param_init=LINEAR,
            ),
        )
        for _ in range(s.num_layers)
    ]
    return Qwen3Model.Config(
        vocab_size=vocab,
        dim=s.dim,
        norm=_norm(s.dim),
        enable_weight_tying=tied,
        layers=layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab,
            embedding_dim=s.dim,
            # A tied embedding is the head's weight, which the head draws.
            param_init={"weight": skip_param_init if tied else LINEAR["weight"]},
        ),
        lm_head=Linear.Config(in_features=s.dim, out_features=vocab, param_init=LINEAR),
    )


def _norm(dim: int) -> Any:
    return RMSNorm.Config(normalized_shape=dim, eps=NORM_EPS, param_init=NORM)
