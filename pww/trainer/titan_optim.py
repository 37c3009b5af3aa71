"""The inner optimiser as torchtitan's container of optimisers. Import after `titan_cpu.install`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, assert_never

from torch import nn
from torch.optim import Optimizer
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

from pww.config.schema import AdamW, Muon
from pww.trainer.muon import ShardedMuon

MUON = "Muon"
LAYER = re.compile(r"(^|\.)\d+\.")
"""In the name of a parameter: it belongs to one of a list of layers."""


class Optimizers(OptimizersContainer):  # type: ignore[misc]
    """Knows Muon besides torchtitan's own, and which parameters are for it."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):  # type: ignore[misc]
        """Of torchtitan's fields only the groups; one of Muon's gets `matrices` for a pattern."""

    def __init__(self, config: Config, *, model_parts: list[nn.Module]) -> None:
        names = [re.escape(name) for part in model_parts for name in matrices(part)]
        groups = [
            replace(group, pattern=f"^({'|'.join(names)})$")
            if group.optimizer_name == MUON
            else group
            for group in config.param_groups
        ]
        super().__init__(self.Config(param_groups=groups), model_parts=model_parts)

    @staticmethod
    def _resolve_optimizer_factory(name: str) -> Callable[..., Optimizer]:
        if name == MUON:
            return ShardedMuon
        factory: Callable[..., Optimizer] = OptimizersContainer._resolve_optimizer_factory(name)
        return factory


def matrices(model: nn.Module) -> list[str]:
    """The matrices of the layers: what Muon is for. Not the embedding, nor the output layer."""
    return [name for name, p in model.named_parameters() if p.ndim == 2 and LAYER.search(name)]


def optimizers(optim: AdamW | Muon) -> Optimizers.Config:
    """The container that `optim` asks for; the rate is set step by step (`titan_schedule`)."""
    adamw: dict[str, Any] = {
        "lr": optim.lr,
        "betas": (optim.beta1, optim.beta2),
        "eps": 1e-8,
        "weight_decay": optim.weight_decay,
    }
    groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=adamw)]
    match optim:
        case AdamW():
            pass
        case Muon():
            muon = {
                "lr": optim.lr,
                "weight_decay": optim.weight_decay,
                "momentum": optim.momentum,
                "iterations": optim.newton_schulz,
            }
            groups.insert(
                0, ParamGroupConfig(pattern="", optimizer_name=MUON, optimizer_kwargs=muon)
            )
        case _:
            assert_never(optim)
    return Optimizers.Config(param_groups=groups)
