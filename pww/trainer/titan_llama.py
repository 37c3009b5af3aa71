"""Llama 3's layers as torchtitan builds them (3.1's rotary scaling, its initial weights).

Apart from what `titan_model` says of every model. Import after `titan_cpu.install`.
"""

from typing import TYPE_CHECKING, Any

from torch import nn
from torchtitan.models.common import ComplexRoPE, Embedding, Linear
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init
from torchtitan.models.llama3 import Llama3Model
from torchtitan.models.llama3.model import Llama3TransformerBlock

from pww.trainer.titan_init import INIT_STD, NORM, Inits, truncated, whole

if TYPE_CHECKING:
    from pww.trainer.titan_model import Sizes

ROPE_THETA = 5e5
NORM_EPS = 1e-5


def decoder(s: "Sizes", *, vocab: int, tied: bool) -> Any:
    """Torchtitan's configuration of such a model."""
    out_std = s.dim**-0.5
    return Llama3Model.Config(
        vocab_size=vocab,
        dim=s.dim,
        norm=_norm(s.dim),
        enable_weight_tying=tied,
        layers=[_layer(s, truncated(depth_scaled_std(INIT_STD, i))) for i in range(s.num_layers)],
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab,
            embedding_dim=s.dim,
            # A tied embedding is the head's weight, which the head draws.
            param_init={"weight": skip_param_init if tied else whole(nn.init.normal_)},
        ),
        lm_head=Linear.Config(
            in_features=s.dim,
            out_features=vocab,
            param_init=truncated(out_std, limit=3 * out_std),
        ),
    )


def _layer(s: "Sizes", deep: Inits) -> Any:
    """`deep`: for the matrices that write to the residual stream, smaller with the depth."""
    return Llama3TransformerBlock.Config(
        attention_norm=_norm(s.dim),
        ffn_norm=_norm(s.dim),
        attention=make_gqa_config(
            dim=s.dim,
            n_heads=s.num_heads,
            n_kv_heads=s.num_kv_heads,
            wqkv_param_init=truncated(INIT_STD),
            wo_param_init=deep,
            inner_attention=ScaledDotProductAttention.Config(),
            fuse_qkv=False,
            rope=ComplexRoPE.Config(
                dim=s.head_dim, max_seq_len=s.max_seq_len, theta=ROPE_THETA, scaling="llama"
            ),
        ),
        feed_forward=make_ffn_config(
            dim=s.dim,
            hidden_dim=s.hidden_dim,
            w1_param_init=truncated(INIT_STD),
            w2w3_param_init=deep,
        ),
    )


def _norm(dim: int) -> Any:
    return RMSNorm.Config(normalized_shape=dim, eps=NORM_EPS, param_init=NORM)
