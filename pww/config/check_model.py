"""Rules of the inner loop: the network, how ranks share it, its optimiser and its batch.

Each rule is a pair: the keys that it reads, and a function that yields a sentence a fault.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from pww.config.one_replica import of_one
from pww.config.schema import Config, ImageModel, LanguageModel

FLAVOURS = {
    "qwen3": ("0.6B", "1.7B", "4B", "8B", "14B", "32B"),
    "llama3": ("1B", "3B", "8B", "70B", "405B"),
}
"""What torchtitan 0.3.0 ships of each family."""

POSITIONS = {"qwen3": 40960, "llama3": 131072}
"""What the rotary embedding of each shipped family was made for."""


class Modelled(Protocol):
    """A configuration that may have a model."""

    @property
    def model(self) -> LanguageModel | ImageModel | None:
        """Which."""


def batch_divides(config: Config) -> Iterator[str]:
    """Every rank gets the same number of windows a step, and a forward pass."""
    batch, ranks, times = (
        config.optim.batch_windows,
        of_one(config).parallel.ranks,
        config.optim.accumulate,
    )
    if batch % ranks:
        yield (
            f"optim.batch_windows={batch}: must be a multiple of {_ranks(config)}; "
            f"for example {-(-batch // ranks) * ranks}"
        )
    elif batch // ranks % times:
        share = batch // ranks
        divisors = ", ".join(str(d) for d in range(1, share + 1) if share % d == 0)
        yield (
            f"optim.accumulate={times}: must divide the {share} windows that a rank has a step "
            f"(optim.batch_windows={batch} over {_ranks(config)}); one of {divisors}"
        )


def kind_fits_ranks(config: Config) -> Iterator[str]:
    """`parallel.kind` says how many ranks share a copy; only hsdp leaves a choice."""
    kind, ranks, shard = (
        config.parallel.kind,
        config.parallel.ranks,
        config.parallel.shard_ranks,
    )
    own = of_one(config).parallel.ranks
    if kind == "single" and own != 1:
        yield f"parallel.ranks={ranks}: parallel.kind=single has one rank; use parallel=fsdp"
    elif kind in ("single", "ddp") and shard != 1:
        yield (
            f"parallel.shard_ranks={shard}: with parallel.kind={kind} every rank holds a whole "
            "copy; use parallel=hsdp for copies that are sharded over some ranks"
        )
    elif kind == "fsdp" and shard != ranks:
        yield (
            f"parallel.shard_ranks={shard}: parallel.kind=fsdp shards one copy over all of "
            f"parallel.ranks={ranks}; use parallel=hsdp for copies that are sharded over some ranks"
        )
    elif kind == "hsdp" and own % shard:
        divisors = ", ".join(str(d) for d in range(1, own + 1) if own % d == 0)
        yield (
            f"parallel.shard_ranks={shard}: must divide {_ranks(config)}, so that every copy "
            f"is sharded alike; one of {divisors}"
        )


def _ranks(config: Config) -> str:
    """The ranks of a replica in words."""
    k, ranks = config.diloco.replicas, config.parallel.ranks
    return f"parallel.ranks={ranks}" + (
        f" / diloco.replicas={k}" if k > 1 and ranks % k == 0 else ""
    )


def heads_fit(config: Modelled) -> Iterator[str]:
    """Attention's shapes."""
    model = config.model
    if model is None or model.kind != "custom":
        return
    if model.num_heads % model.num_kv_heads:
        yield (
            f"model.num_kv_heads={model.num_kv_heads}: must divide "
            f"model.num_heads={model.num_heads}"
        )
    if model.head_dim % 2:
        yield f"model.head_dim={model.head_dim}: must be even, since rotary embeddings turn pairs"
    if model.family == "llama3" and model.head_dim * model.num_heads != model.dim:
        yield (
            f"model.head_dim={model.head_dim}: times model.num_heads={model.num_heads} must be "
            f"model.dim={model.dim} with model.family=llama3, whose heads share the width"
        )


def flavour_fits(config: Modelled) -> Iterator[str]:
    """A family has its own flavours and its own longest window."""
    model = config.model
    if model is None or model.kind != "shipped":
        return
    if model.flavor not in FLAVOURS[model.family]:
        yield (
            f"model.flavor={model.flavor}: model.family={model.family} has "
            f"{', '.join(FLAVOURS[model.family])}"
        )
    if model.seq_len > POSITIONS[model.family]:
        yield (
            f"model.seq_len={model.seq_len}: at most {POSITIONS[model.family]}, what the rotary "
            f"embedding of {model.family} was made for"
        )


def homes_fit(config: Modelled) -> Iterator[str]:
    """What other keys are the home of is no change of a model of `transformers`."""
    model = config.model
    if model is None or model.kind != "hf":
        return
    tokenizer = "the corpus's tokenizer"
    homes = {
        "vocab_size": tokenizer, "tie_word_embeddings": "model.tie_embeddings",
        "bos_token_id": tokenizer, "eos_token_id": tokenizer, "pad_token_id": tokenizer,
    }  # fmt: skip
    for name in sorted(homes.keys() & model.changes.keys()):
        yield f"model.changes.{name}: comes from {homes[name]}; leave it out"


def transformers_fits(config: Config) -> Iterator[str]:
    """What a model of `transformers` cannot have here."""
    model = config.model
    if model.kind != "hf":
        return
    if config.parallel.activation_checkpoint == "selective":
        yield (
            "parallel.activation_checkpoint=selective: knows the layers of torchtitan's models "
            f"only, and model={model.name} is one of transformers; use none or full"
        )


def schedule_fits(config: Config) -> Iterator[str]:
    """A corpus is as long as the rise and the fall together, or longer."""
    optim = config.optim
    if optim.decay == "wsd" and optim.warmup + optim.decay_share > 1:
        yield (
            f"optim.decay_share={optim.decay_share:g}: with optim.warmup={optim.warmup:g} that is "
            "more than the whole corpus; together at most 1"
        )


RULES: tuple[tuple[tuple[str, ...], Callable[[Config], Iterator[str]]], ...] = (
    (
        ("optim.batch_windows", "optim.accumulate", "parallel.ranks", "diloco.replicas"),
        batch_divides,
    ),
    (
        ("parallel.kind", "parallel.ranks", "parallel.shard_ranks", "diloco.replicas"),
        kind_fits_ranks,
    ),
    (("model",), heads_fit),
    (("model",), flavour_fits),
    (("model",), homes_fit),
    (("model", "parallel.activation_checkpoint"), transformers_fits),
    (("optim.warmup", "optim.decay", "optim.decay_share"), schedule_fits),
)
