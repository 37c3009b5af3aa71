"""A model of the tree as the lab's network: one module, called with every worker's parameters.

`torch.func` maps one call of torchtitan's (or transformers') own module over the stacked tensors,
so that each matrix product is one batched product. It computes what `pww.train` computes: the same
layers, compute type, loss and, with the same seed and as many rows, theta(0). The corpus here is
characters, so that the embedding has a row for each of those (padded to `model.vocab_multiple`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from pww.config.schema import HfModel, LanguageModel
from pww.config.schema.lab import LabConfig
from pww.data.build import padded
from pww.lab.attention import AllAtOnce
from pww.lab.room import check_room
from pww.lab.stack import Shapes
from pww.lab.text import VOCABULARY
from pww.trainer.titan_cpu import install, unwarned

if TYPE_CHECKING:
    from torchtitan.protocols.model_spec import ModelSpec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class ModelNetwork:
    """Implements `network.Network`.

    Raises:
        ConfigError: the model does not fit the memory, or `transformers` cannot build it.
    """

    def __init__(self, config: LabConfig, model: LanguageModel) -> None:
        install("cpu")
        from pww.trainer.titan_model import model_spec

        self._dtype = DTYPES[model.dtype]
        rows = padded(len(VOCABULARY), model.vocab_multiple)
        with unwarned():
            spec = model_spec(model, padded_vocab=rows, gloo=True, seed=config.seed)
            with torch.device("meta"):
                parameters = sum(p.numel() for p in spec.model.build().parameters())
            check_room(config, parameters=parameters)
            self._module = drawn(spec, model, seed=config.seed)
        self.shapes: Shapes = {n: tuple(p.shape) for n, p in self._module.named_parameters()}

    def initial(self) -> dict[str, torch.Tensor]:
        """As `pww.train` draws it by `seed`."""
        return {name: p.detach() for name, p in self._module.named_parameters()}

    def losses(self, params: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """One call of the module for all workers; see `Network.losses`."""
        with AllAtOnce():
            found: torch.Tensor = vmap(self._loss)(dict(params), tokens)
        return found

    def _loss(self, params: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """One worker's; parameters are cast as FSDP casts them, and the loss is taken in fp32."""
        cast = {name: p.to(self._dtype) for name, p in params.items()}
        logits = functional_call(self._module, cast, (tokens[:, :-1],))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def drawn(spec: "ModelSpec", model: LanguageModel, *, seed: int) -> nn.Module:
    """The model on the CPU with its initial weights; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(model, HfModel):
            from pww.trainer.titan_hf import check_causal

            whole: Any = spec.model.build()
            check_causal(whole.model, model.config)
            return whole  # type: ignore[no-any-return]
        with torch.device("meta"):
            module: Any = spec.model.build()
        module.to_empty(device="cpu")
        module.init_states()
        return module  # type: ignore[no-any-return]
