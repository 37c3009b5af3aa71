"""Small models of the tree for tests of the lab, and each of them by plain torch, alone."""

from collections.abc import Mapping
from typing import Any

import torch
from lab_engine import TEXT, config
from torch import nn

from pww.config.schema.lab import ModelTask
from pww.lab.engine import Engine

SMALL = (
    "model.dim=16", "model.num_layers=2", "model.num_heads=2", "model.num_kv_heads=1",
    "model.head_dim=8", "model.hidden_dim=24", "model.seq_len=12", "model.vocab_multiple=32",
)  # fmt: skip
GPT2 = (
    "model=hf/gpt2", "model.changes.n_layer=2", "model.changes.n_embd=16",
    "model.changes.n_head=2", "model.seq_len=12", "model.dtype=fp32", "model.vocab_multiple=32",
    "optim.batch_windows=4",
)  # fmt: skip
MODELS = {
    "qwen3": ("model=qwen3_debug", *SMALL),
    "llama3": ("model=llama3_debug", *SMALL),
    "llama3 untied": ("model=llama3_debug", *SMALL, "model.tie_embeddings=false"),
    "gpt2": GPT2,
}


def engine(*words: str) -> Engine:
    """An engine of task=model on the made-up text."""
    made = config(("task=model", *words))
    assert isinstance(made.task, ModelTask)
    return Engine(made, made.task, TEXT)


def alone(made: Engine, params: Mapping[str, torch.Tensor]) -> nn.Module:
    """The engine's own module as one uses a module: its parameters are these."""
    module: Any = made.network._module  # type: ignore[attr-defined]
    found = dict(module.named_parameters())
    assert found.keys() == params.keys()
    with torch.no_grad():
        for name, parameter in found.items():
            parameter.copy_(params[name])
    plain: nn.Module = module
    return plain


def loss_of(module: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of windows (B, T + 1)."""
    logits = module(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
