"""What a run trains: a network as tensors, and the losses of many workers at once."""

from collections.abc import Mapping
from typing import Protocol

import torch

from pww.config.schema.lab import CharLm, LabConfig
from pww.lab import charlm
from pww.lab.seeds import generator
from pww.lab.stack import Shapes


class Network(Protocol):
    """One network; parameters are its users', stacked `(M, ...)` for M workers."""

    @property
    def shapes(self) -> Shapes:
        """Every tensor of one worker's, in the order of a row."""

    def initial(self) -> dict[str, torch.Tensor]:
        """theta(0), one worker's; the same seed gives the same in every cell."""

    def losses(self, params: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """Each worker's mean cross entropy (M,) in nats, of `tokens` (M, B, T + 1).

        The sum's gradient by a worker's parameters is that of its own loss alone.
        """


class Characters:
    """The task charlm's own GPT."""

    def __init__(self, config: LabConfig, task: CharLm) -> None:
        self._size, self._seed = charlm.SIZES[task.size], config.seed
        self.shapes: Shapes = self._size.shapes

    def initial(self) -> dict[str, torch.Tensor]:
        """Drawn by the run's seed."""
        return charlm.initial(self._size, generator=generator(self._seed, "parameters"))

    def losses(self, params: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """See `charlm.losses`."""
        return charlm.losses(params, tokens, size=self._size)


def network_of(config: LabConfig) -> Network:
    """The network of a configuration.

    Raises:
        ConfigError: the model does not fit the memory, or `transformers` cannot build it.
    """
    if isinstance(config.task, CharLm):
        return Characters(config, config.task)
    from pww.lab.model_network import ModelNetwork

    assert config.model is not None, "lab_model.model_fits"
    return ModelNetwork(config, config.model)


def context_of(config: LabConfig) -> int:
    """Positions of a window."""
    if isinstance(config.task, CharLm):
        return charlm.SIZES[config.task.size].context
    assert config.model is not None, "lab_model.model_fits"
    return config.model.seq_len
