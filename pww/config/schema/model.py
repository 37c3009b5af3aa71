"""The network, how ranks share it, and the inner optimiser."""

from typing import Annotated, Literal

from pydantic import Field

from pww.config.schema.base import Decay, Fraction, Name, Positive, Rate, Section


class CustomModel(Section):
    """A Qwen3 whose sizes are all given here."""

    kind: Literal["custom"]
    name: Name
    dim: Positive
    num_layers: Positive
    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    hidden_dim: Positive
    seq_len: Positive
    tie_embeddings: bool
    vocab_multiple: Positive
    dtype: Literal["fp32", "bf16"]  # compute; master weights are fp32 always


class ShippedModel(Section):
    """One of torchtitan's Qwen3 flavours, with our vocabulary."""

    kind: Literal["shipped"]
    name: Name
    flavor: Literal["0.6B", "1.7B", "4B", "8B", "14B", "32B"]
    seq_len: Annotated[int, Field(ge=1, le=40960)]  # what Qwen3's rotary embedding was made for
    tie_embeddings: bool
    vocab_multiple: Positive
    dtype: Literal["fp32", "bf16"]


Model = Annotated[CustomModel | ShippedModel, Field(discriminator="kind")]


class Parallel(Section):
    """How the ranks of one replica share it."""

    kind: Literal["single", "fsdp"]
    ranks: Positive


class Optim(Section):
    """The inner optimiser and its batch."""

    name: Literal["adamw"]
    lr: Rate
    beta1: Decay
    beta2: Decay
    weight_decay: Annotated[float, Field(ge=0)]
    batch_windows: Positive  # windows a step of the whole replica
    warmup: Fraction  # share of the corpus over which the LR rises
    decay: Literal["cosine", "constant"]
    min_lr: Fraction  # of lr, at the end of the corpus
    clip_norm: Rate
