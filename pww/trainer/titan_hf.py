"""Causal language models of `transformers` as torchtitan models: from their configuration, anew.

torchtitan has a backend for them that needs a newer torch, so this is a thin one of our own: FSDP2
on every layer, the corpus's vocabulary, no weights from elsewhere. Rank 0 draws all weights, by the
model's own rules, and deals them out: theta(0) does not depend on the number of ranks.

Import after `titan_cpu.install`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.fsdp import disable_fsdp_gradient_division
from torchtitan.protocols.model import BaseModel

from pww.config.schema import HfModel
from pww.errors import ConfigError
from pww.trainer.hf_config import transformers_config
from pww.trainer.shards import WRAPPED, parameters, scatter

PROBE_TOKENS = 8
EXPERTS = re.compile(r"(^|_)(n|num)_(\w+_)?experts$")
"""num_experts, num_local_experts, n_routed_experts, moe_num_experts; no num_experts_per_tok."""


class HfDecoder(BaseModel):  # type: ignore[misc]
    """Tokens in, logits out."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):  # type: ignore[misc]
        """What it is built from; text and numbers, since torchtitan writes configurations down."""

        model: str  # an HfModel as JSON
        padded_vocab: int
        seed: int

        def update_from_config(self, *, config: object, **given: object) -> None:
            """Torchtitan's hook: there is nothing left to set."""

        def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
            """Parameters, and 6 operations a token for each (attention's own are left out)."""
            num = sum(p.numel() for p in model.parameters())
            return num, 6 * num

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = _build(config)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of [batch, seq_len] tokens."""
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def verify_module_protocol(self) -> None:
        """Torchtitan's own modules have to satisfy it; these are not."""

    def init_states(self, *, buffer_device: torch.device | None = None) -> None:
        """Collective: rank 0 draws the whole model on its CPU, every rank gets its part.

        Raises:
            ConfigError: on every rank, if a token's logits depend on the tokens after it.
        """
        if _model(self.config).tie_embeddings:
            # `to_empty` has made two tensors of one
            head, embedding = self.model.get_output_embeddings(), self.model.get_input_embeddings()
            head.weight = embedding.weight
        whole: nn.Module | None = None
        if dist.get_rank() == 0:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.config.seed)
                whole = _build(self.config)
        device = next(self.model.parameters()).device
        causal = torch.tensor(whole is None or _is_causal(whole), device=device)
        dist.broadcast(causal, src=0)
        if not bool(causal.item()):
            raise _not_causal(_model(self.config).config)
        drawn = {} if whole is None else dict(whole.named_parameters())
        for name, parameter in parameters(self.model):
            scatter(parameter, drawn[name].detach() if whole is not None else None)
        made = {} if whole is None else dict(whole.named_buffers())
        for name, buffer in self.model.named_buffers():
            if whole is not None:
                buffer.copy_(made[name.replace(WRAPPED, "")])
            dist.broadcast(buffer, src=0)


def model_config(model: HfModel, *, padded_vocab: int, seed: int) -> HfDecoder.Config:
    """Torchtitan's configuration of `model`, once `transformers` has agreed to it.

    Raises:
        ConfigError: `transformers` is not installed, knows no such model or option, or the model
            does not fit the windows.
    """
    config = HfDecoder.Config(model=model.model_dump_json(), padded_vocab=padded_vocab, seed=seed)
    _check(config)
    return config


def parallelize(model: HfDecoder, **given: Any) -> HfDecoder:
    """Torchtitan's hook: checkpointing, compilation and FSDP2 on every layer, as it has asked."""
    dims, training = given["parallel_dims"], given["training"]
    if given["ac_config"] is not None:
        for name, block in _blocks(model.model):
            model.model.set_submodule(name, checkpoint_wrapper(block, preserve_rng_state=False))
    blocks = [block for _, block in _blocks(model.model)]
    if given["compile_config"].enable:
        for block in blocks:
            block.compile()
    names = ["dp_replicate", "fsdp"] if dims.dp_replicate_enabled else ["fsdp"]
    how = {
        "mesh": dims.get_mesh(names),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=TORCH_DTYPE_MAP[training.mixed_precision_param],
            reduce_dtype=TORCH_DTYPE_MAP[training.mixed_precision_reduce],
            cast_forward_inputs=False,
        ),
    }
    for block in blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)  # embeddings, last norm and output: one unit, so they may be tied
    disable_fsdp_gradient_division(model)
    return model


def _build(config: HfDecoder.Config) -> Any:
    """The model on the current device; on the meta device without weights."""
    from transformers import AutoModelForCausalLM

    hf = transformers_config(_model(config), padded_vocab=config.padded_vocab)
    return AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call,unused-ignore]
        hf, attn_implementation="sdpa", dtype=torch.float32, trust_remote_code=False
    )


def _model(config: HfDecoder.Config) -> HfModel:
    return HfModel.model_validate_json(config.model)


def _blocks(model: Any) -> list[tuple[str, nn.Module]]:
    """The layers that `transformers` itself would keep on one device, wrapped ones included."""
    names = set(model._no_split_modules or ())
    found = [n for n, m in model.named_modules() if type(m).__name__ in names]
    outer = [n.removesuffix(f".{WRAPPED[:-1]}") for n in found]
    return [(name, model.get_submodule(name)) for name in outer]


def check_causal(model: Any, name: str) -> None:
    """Refuses a model of `transformers` that sees what it should predict; `name`: its type.

    Raises:
        ConfigError: it does.
    """
    if not _is_causal(model):
        raise _not_causal(name)


def _not_causal(name: str) -> ConfigError:
    return ConfigError(
        [
            f"model.config={name}: it sees the tokens that it should predict; only causal "
            "(decoder-only) models can be trained here"
        ]
    )


@torch.no_grad()
def _is_causal(model: Any) -> bool:
    """Whether changing the last token leaves the logits of all before it as they were."""
    num = model.config.vocab_size
    tokens = torch.arange(PROBE_TOKENS).remainder(num)[None]
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % num
    model.eval()
    before, after = (model(input_ids=t, use_cache=False).logits[0, :-1] for t in (tokens, other))
    return bool(torch.allclose(before, after, rtol=0, atol=1e-6 * float(before.abs().max())))


def _check(config: HfDecoder.Config) -> None:
    """Raises ConfigError on every fault of a configuration that `transformers` accepts."""
    faults, model = [], _model(config)
    hf = transformers_config(model, padded_vocab=config.padded_vocab)
    if experts := _experts(hf.to_dict()):
        raise ConfigError(
            [
                f"model.config={model.config}: a mixture of experts ({', '.join(experts)}): there "
                "is no router loss here that would keep them in even use, and its operations would "
                "be counted wrongly; use a dense model type, such as llama or qwen3"
            ]
        )
    positions = getattr(hf, "max_position_embeddings", None)
    if isinstance(positions, int) and model.seq_len > positions:
        faults.append(
            f"model.seq_len={model.seq_len}: {model.config} has {positions} positions; use fewer "
            "tokens, or change that number in model.changes"
        )
    try:
        with torch.device("meta"):
            built = _build(config)
    except (ImportError, TypeError, ValueError) as fault:
        text = " ".join(str(fault).split())[:200]
        faults.append(
            f"model.config={model.config}: transformers builds no causal model with torch's "
            f"attention from it ({text}); use another model type, or other model.changes"
        )
        raise ConfigError(faults) from None
    if wrong := _misfit(built, padded_vocab=config.padded_vocab, tied=model.tie_embeddings):
        faults.append(f"model.config={model.config}: {wrong}")
    if any(_draws(module) for module in built.modules()):
        names = [n for n, v in hf.to_dict().items() if "drop" in n and isinstance(v, float) and v]
        faults.append(
            f"model.config={model.config}: it drops activations out at random, and every number of "
            f"ranks must train the same model; give 0.0 in model.changes to {', '.join(names)}"
        )
    if faults:
        raise ConfigError(faults)


def _experts(options: Mapping[Any, Any]) -> list[str]:
    """The options that say that there are several experts, whatever a model calls them."""
    found = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            found += _experts(value)
        numbers = value if isinstance(value, list | tuple) else [value]
        if EXPERTS.search(str(name)) and any(isinstance(n, int) and n > 1 for n in numbers):
            found.append(f"{name}={value}")
    return found


def _misfit(built: Any, *, padded_vocab: int, tied: bool) -> str:
    """What `transformers` made otherwise than it was told: some models keep sizes elsewhere."""
    head, embedding = built.get_output_embeddings(), built.get_input_embeddings()
    if head is None or embedding is None:
        return "it has no embedding or no output layer of its own; use another model type"
    rows = {len(embedding.weight), len(head.weight)}
    if rows != {padded_vocab}:
        return (
            f"its vocabulary stays {max(rows)} where the corpus has {padded_vocab} (padded): it is "
            "made of several models; use the type of its language model, such as gemma3_text"
        )
    if (head.weight is embedding.weight) != tied:
        return (
            f"it takes no notice of model.tie_embeddings={str(tied).lower()}; use "
            f"model.tie_embeddings={str(not tied).lower()}"
        )
    return ""


def _draws(module: nn.Module) -> bool:
    """Whether a layer drops out, as a module or by a number of its own."""
    if isinstance(module, nn.Dropout):
        return module.p > 0
    return any("drop" in n and isinstance(v, float) and v > 0 for n, v in vars(module).items())
