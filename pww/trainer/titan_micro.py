"""Gradient accumulation: a rank's share of a step in several forward passes of equal size.

Which windows a step has does not change, nor does the loss: torchtitan divides by the tokens of the
whole step. Import after `titan_cpu.install`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pww.trainer.titan_data import Batch, WindowLoader


class MicroLoader(WindowLoader):
    """A `WindowLoader` that cuts every share into `accumulate` parts."""

    @dataclass(kw_only=True, slots=True)
    class Config(WindowLoader.Config):
        """How many parts."""

        accumulate: int

    def __init__(self, config: Config, *, local_batch_size: int, **given: Any) -> None:
        super().__init__(config, local_batch_size=local_batch_size * config.accumulate, **given)
        self._micro = local_batch_size

    def __iter__(self) -> Iterator[Batch]:
        for inputs, labels in super().__iter__():
            for start in range(0, len(labels), self._micro):
                part = slice(start, start + self._micro)
                yield {name: value[part] for name, value in inputs.items()}, labels[part]
