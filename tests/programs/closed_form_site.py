"""A site whose inner loop is a closed form: real config, leases, Flower, outbox; no torchtitan.

    python closed_form_site.py OVERRIDE...      (as for pww.train; the run folder is made or gone
    on with)

Each inner step moves theta a tenth of the way to the mean of its windows' targets, so that an
independent replay of the draw logs predicts every theta. Environment: STEP_S seconds a step,
NAN_PHASES phases that end in nan, ROWS of the weight (3).
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from pww.clock import SystemClock
from pww.config import paths
from pww.config.load import compose
from pww.trainer.api import EvalResult, PhaseResult
from pww.worker import main

ROWS = int(os.environ.get("ROWS", "3"))
SHAPES = {"bias": (), "empty": (0,), "weight": (ROWS, 2)}
RATE = 0.1


def target(window: int) -> torch.Tensor:
    """What a window pulls theta to: two numbers in every row that depend on its id alone."""
    return torch.tensor([[(window * k) % 97 / 97.0 for k in (3, 5)]]).expand(ROWS, 2)


def step(weight: torch.Tensor, bias: torch.Tensor, windows: list[int]):
    """One inner step in fp32."""
    goal = torch.stack([target(w) for w in windows]).mean(0)
    return weight - (weight - goal) * RATE, bias - (bias - goal.mean()) * RATE


@dataclass
class StepCopy:
    """An inner state that is a number."""

    step: int

    def write(self, folder: Path):
        folder.mkdir()
        (folder / "step").write_text(str(self.step))


class ClosedForm:
    """`pww.trainer.api.Trainer` on one rank."""

    def __init__(self, config, corpus, ranks):
        self._batch = config.optim.batch_windows
        self._tokens = corpus.manifest.window_tokens - 1
        self._clock = SystemClock()
        self._step_s = float(os.environ.get("STEP_S", "0"))
        self._nan_phases = int(os.environ.get("NAN_PHASES", "0"))
        self._phase = 0
        self.step = 0
        self.theta = {
            "bias": torch.tensor(1.0),
            "empty": torch.zeros(0),
            "weight": torch.full((ROWS, 2), float(config.seed)),
        }

    def shapes(self):
        return SHAPES

    def tensors(self):
        return iter([(name, value.clone()) for name, value in self.theta.items()])

    def load(self, theta: Path):
        from safetensors.torch import load_file

        self.theta = load_file(theta)

    def run(self, windows, *, progress, progress_end, on_step, stop):
        import threading

        start, never = self._clock.monotonic(), threading.Event()
        batches = [list(windows[i : i + self._batch]) for i in range(0, len(windows), self._batch)]
        done, drawn = 0, []
        for batch in batches:
            if stop.agreed():
                break
            weight, bias = step(self.theta["weight"], self.theta["bias"], batch)
            self.theta = {**self.theta, "weight": weight, "bias": bias}
            drawn += batch
            done += 1
            self.step += 1
            self._clock.wait(never, self._step_s)
            on_step(
                step=self.step, done=done, of=len(batches), loss=float(bias.abs()),
                tokens=len(drawn) * self._tokens, lr=RATE,
            )  # fmt: skip
        self._phase += 1
        if self._phase <= self._nan_phases:
            self.theta["weight"][2, 1] = float("nan")
        return PhaseResult(
            steps=done,
            tokens=len(drawn) * self._tokens,
            loss=float(self.theta["bias"].abs()),
            seconds=max(self._clock.monotonic() - start, 1e-6),
            drawn=tuple(sorted(drawn)),
            stopped=done < len(batches),
        )

    def expect(self, windows) -> None:
        pass

    def evaluate(self):
        return EvalResult(loss=float(self.theta["weight"].double().square().mean()), tokens=100)

    def save_inner(self, folder: Path):
        self.copy_inner().write(folder)

    def copy_inner(self):
        return StepCopy(self.step)

    def load_inner(self, folder: Path):
        self.step = int((folder / "step").read_text())

    def reset_inner(self):
        pass

    def close(self):
        pass


if __name__ == "__main__":
    config = compose(sys.argv[1:])
    folder = paths.run_folder(config)
    if not folder.exists():
        folder.mkdir(parents=True)
        paths.freeze(config, folder)
    code = main([str(folder)], engine=ClosedForm)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
