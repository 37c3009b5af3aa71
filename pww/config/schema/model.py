"""The network, how ranks share it, and the inner optimiser."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pww.config.schema.base import Decay, Fraction, Name, Positive, Rate, Section


class CustomModel(Section):
    """A Qwen3 or Llama 3 whose sizes are all given here."""

    kind: Literal["custom"]
    family: Literal["qwen3", "llama3"]
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
    """One of torchtitan's flavours, with our vocabulary."""

    kind: Literal["shipped"]
    family: Literal["qwen3", "llama3"]
    name: Name
    # of either family; `check.flavour_fits` knows whose each is
    flavor: Literal["0.6B", "1.7B", "4B", "8B", "14B", "32B", "1B", "3B", "70B", "405B"]
    seq_len: Positive
    tie_embeddings: bool
    vocab_multiple: Positive
    dtype: Literal["fp32", "bf16"]


class HfModel(Section):
    """Any causal language model that `transformers` can build, from its own configuration."""

    kind: Literal["hf"]
    name: Name
    config: Annotated[str, StringConstraints(min_length=1)]  # a model type, or a folder
    changes: dict[str, bool | int | float | str]  # of that configuration, by its own names
    seq_len: Positive
    tie_embeddings: bool
    vocab_multiple: Positive
    dtype: Literal["fp32", "bf16"]


class ImageModel(Section):
    """A ResNet for small images."""

    kind: Literal["resnet"]
    name: Name
    layers: Literal["small", "18", "34", "50"]
    dtype: Literal["fp32", "bf16"]

    @property
    def seq_len(self) -> int:
        """An image is a window with one target."""
        return 1

    @property
    def vocab_multiple(self) -> int:
        """There is no vocabulary."""
        return 1

    @property
    def tie_embeddings(self) -> bool:
        """There are none."""
        return False


LanguageModel = CustomModel | ShippedModel | HfModel
Model = Annotated[LanguageModel | ImageModel, Field(discriminator="kind")]


class Parallel(Section):
    """How the ranks of one replica share it, and what they trade memory and start-up for."""

    kind: Literal["single", "ddp", "fsdp", "hsdp"]
    ranks: Positive
    shard_ranks: Positive  # ranks that share one copy; ranks / shard_ranks copies
    activation_checkpoint: Literal["none", "selective", "full"]
    compile: bool


class Optim(Section):
    """What every inner optimiser has: the batch, the schedule, the limit on gradients."""

    lr: Rate
    weight_decay: Annotated[float, Field(ge=0)]
    batch_windows: Positive  # windows a step of the whole replica
    accumulate: Positive  # forward passes of a rank in one step
    warmup: Fraction  # share of the corpus over which the LR rises
    decay: Literal["cosine", "wsd", "constant"]
    decay_share: Fraction  # of the corpus, at its end, where wsd falls
    min_lr: Fraction  # of lr, at the end of the corpus
    clip_norm: Rate


class AdamW(Optim):
    """Adam with decoupled weight decay, for every parameter."""

    name: Literal["adamw"]
    beta1: Decay
    beta2: Decay


class Muon(Optim):
    """Orthogonalised momentum for the matrices of the layers, AdamW for everything else."""

    name: Literal["muon"]
    beta1: Decay
    beta2: Decay
    momentum: Decay
    newton_schulz: Annotated[int, Field(ge=1, le=20)]  # iterations of the orthogonalisation


class Sgd(Optim):
    """Gradient descent with Nesterov's momentum; weight decay is part of the gradient."""

    name: Literal["sgd"]
    momentum: Decay


InnerOptim = Annotated[AdamW | Muon | Sgd, Field(discriminator="name")]
