"""A trainer small enough to be checked by hand: a few numbers pulled towards what windows say."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pww.errors import PayloadError
from pww.trainer import shards
from pww.trainer.api import EvalResult, PhaseResult
from pww.trainer.ranks import Ranks

BATCH = 4


class Little:
    """`api.Live`: SGD with momentum; every rank of the replica does the same."""

    def __init__(
        self, ranks: Ranks, *, at_step: Callable[["Little"], None] = lambda trainer: None
    ) -> None:
        self.module = nn.Linear(3, 5)
        with torch.no_grad():
            for number, parameter in enumerate(self.module.parameters()):
                parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) / 8 + number)
        self._ranks, self.step, self._at_step = ranks, 0, at_step
        self.phases = 0
        self.reset_inner()

    def shapes(self) -> dict[str, Sequence[int]]:
        return {name: tuple(p.shape) for name, p in self.module.named_parameters()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            yield name, shards.gather(parameter, keep=self._ranks.rank == 0)

    @torch.no_grad()
    def load(self, theta: Path) -> None:
        from safetensors.torch import load_file

        found = load_file(theta)
        if found.keys() != self.shapes().keys():
            raise PayloadError("another model's")
        for name, parameter in self.module.named_parameters():
            parameter.copy_(found[name])

    def run(self, windows: Sequence[int], *, stop: Any, on_step: Any, **_: Any) -> PhaseResult:
        self.phases += 1
        began, done, loss = time.monotonic(), 0, 0.0
        steps = -(-len(windows) // BATCH)
        while done < steps and not stop.agreed():
            self._at_step(self)
            batch = windows[done * BATCH : (done + 1) * BATCH]
            wish = sum(math.sin(w) for w in batch) / len(batch)
            self._descent.zero_grad()
            x = torch.tensor([wish, 1.0, -wish])
            error = (self.module(x) - wish).square().mean()
            error.backward()
            self._descent.step()
            done, self.step = done + 1, self.step + 1
            loss += float(error.detach()) * len(batch)
        trained = min(done * BATCH, len(windows))
        return PhaseResult(
            steps=done, tokens=trained * 16, loss=loss / trained if trained else math.nan,
            seconds=time.monotonic() - began,
            drawn=tuple(sorted(windows[:trained])) if self._ranks.rank == 0 else (),
            stopped=done < steps,
        )  # fmt: skip

    def expect(self, windows: Sequence[int]) -> None:
        pass

    def evaluate(self) -> EvalResult:
        return EvalResult(float(next(self.module.parameters()).detach().square().sum()), 7)

    def save_inner(self, folder: Path) -> None:
        if self._ranks.rank == 0:
            folder.mkdir()
            moments = [self._descent.state[p].get("momentum_buffer") for p in self._parameters()]
            told = [None if one is None else one.tolist() for one in moments]
            (folder / "inner.json").write_text(json.dumps({"step": self.step, "moments": told}))

    def load_inner(self, folder: Path) -> None:
        row = json.loads((folder / "inner.json").read_text())
        self.step = row["step"]
        for parameter, told in zip(self._parameters(), row["moments"], strict=True):
            if told is not None:
                self._descent.state[parameter]["momentum_buffer"] = torch.tensor(told)

    def reset_inner(self) -> None:
        self._descent = torch.optim.SGD(self._parameters(), lr=0.05, momentum=0.5)

    def close(self) -> None:
        self._ranks.close()

    def _parameters(self) -> list[nn.Parameter]:
        return list(self.module.parameters())
