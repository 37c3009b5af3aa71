"""Qwen3 flavours as torchtitan model specs: our own sizes or the shipped ones, with our vocabulary.

Two departures from the shipped flavours. Q, K and V are separate (a fused one has other names in
`state_dict` than in `named_parameters`, and is gathered whole to be split). And every initial
tensor is drawn in full on every rank from the same seed and then cut: on a CPU, DTensor draws each
shard from that seed and all ranks would get the same rows. So theta(0) does not depend on the
number of ranks either.

Attention is torch's SDPA everywhere, causal over the whole window: documents inside it see each
other. Import after `titan_cpu.install`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.qwen3 import parallelize_qwen3, qwen3_configs
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.protocols.model_spec import ModelSpec

from pww.config.schema import CustomModel, ShippedModel
from pww.trainer.titan_cpu import gloo_safe

ROPE_THETA = 1e6
NORM_EPS = 1e-6
INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that make a dense Qwen3."""

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
            shipped = qwen3_configs[model.flavor]("flex")
            attention, feed_forward = shipped.layers[0].attention, shipped.layers[0].feed_forward
            return Sizes(
                dim=shipped.dim,
                num_layers=len(shipped.layers),
                num_heads=attention.n_heads,
                num_kv_heads=attention.n_kv_heads,
                head_dim=attention.head_dim,
                hidden_dim=feed_forward.w1.out_features,
                max_seq_len=attention.rope.max_seq_len,
            )
        case _:
            assert_never(model)


def model_spec(model: CustomModel | ShippedModel, *, padded_vocab: int, gloo: bool) -> "ModelSpec":
    """A fresh spec (torchtitan changes the one that it is given); `gloo`: for ranks on CPUs."""
    return ModelSpec(
        name="qwen3",
        flavor=model.name,
        model=_decoder(sizes(model), vocab=padded_vocab, tied=model.tie_embeddings),
        parallelize_fn=gloo_safe(parallelize_qwen3) if gloo else parallelize_qwen3,
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
                wqkv_param_init=_LINEAR,
                wo_param_init=_LINEAR,
                inner_attention=ScaledDotProductAttention.Config(),
                fuse_qkv=False,
                rope=rope,
                qk_norm=_norm(s.head_dim),
            ),
            feed_forward=make_ffn_config(
                dim=s.dim,
                hidden_dim=s.hidden_dim,
                w1_param_init=_LINEAR,
                w2w3_param_init=_LINEAR,
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
            param_init={"weight": skip_param_init if tied else _LINEAR["weight"]},
        ),
        lm_head=Linear.Config(in_features=s.dim, out_features=vocab, param_init=_LINEAR),
    )


def _norm(dim: int) -> Any:
    return RMSNorm.Config(normalized_shape=dim, eps=NORM_EPS, param_init={"weight": nn.init.ones_})


def whole(draw: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], None]:
    """An initialiser that draws the full tensor on every rank and keeps this rank's part."""

    def init(tensor: torch.Tensor) -> None:
        if not isinstance(tensor, DTensor):
            draw(tensor)
            return
        local = tensor.to_local()
        full = torch.empty(tensor.shape, dtype=local.dtype, device=local.device)
        draw(full)
        # src_data_rank=None: every rank cuts its own copy, nothing travels.
        cut = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
        local.copy_(cut.to_local())

    return init


_LINEAR: dict[str, Callable[[torch.Tensor], Any]] = {
    "weight": whole(partial(nn.init.normal_, std=INIT_STD)),
    "bias": nn.init.zeros_,
}
