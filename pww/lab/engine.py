"""One run of a network on text: M workers, step by step, all in one vectorised pass.

draw windows -> losses and gradients of all workers -> the method's step -> rows
"""

import math
from collections.abc import Callable
from typing import assert_never

import torch

from pww.config.schema.lab import LabConfig, TextTask
from pww.errors import NotFiniteError
from pww.lab import split, text
from pww.lab.methods.base import Method
from pww.lab.methods.diloco import Diloco
from pww.lab.methods.eager import Eager
from pww.lab.methods.sync import Demo, Dgc, Sync
from pww.lab.network import context_of, network_of
from pww.lab.outcome import Outcome, Row
from pww.lab.seeds import generator
from pww.lab.stack import Stack, flat
from pww.trainer.schedule import phase_lrs

EVALUATED = 64
"""Held-out windows evaluated at once."""


class Engine:
    """The state of a run between two steps."""

    def __init__(self, config: LabConfig, task: TextTask, corpus: text.Corpus) -> None:
        """Draws the parameters; the same seed gives the same in every cell.

        Raises:
            ConfigError, DataError: the method does not fit the model, the model the memory, or
                the text the split.
        """
        self._config, self._context = config, context_of(config)
        self.network = network_of(config)
        length = self._context + 1
        self._streams = split.streams(
            corpus, workers=config.workers, split=task.split, length=length
        )
        self._held_out = split.held_out(corpus, windows=config.lab.eval_windows, length=length)
        self._draws = generator(config.seed, "windows")
        self.stack = Stack(self.network.shapes, workers=config.workers)
        self.stack.load(flat(self.network.initial()))
        self._scratch = Stack(self.network.shapes, workers=1)
        self.method = method_of(config, self.stack)
        self._lrs = phase_lrs(0.0, 1.0, config.lab.steps, config.optim)
        self.steps = self.tokens = 0

    def step(self) -> float:
        """One step of all workers; the mean loss of those that trained, before it.

        Raises:
            NotFiniteError: what would be exchanged is nan or inf.
        """
        windows = self._config.optim.batch_windows
        tokens = self._streams.draw(self._draws, windows=windows, length=self._context + 1)
        active = self.method.active()
        losses = self.network.losses(self.stack.params, tokens)
        self.stack.backward(losses)
        self.method.step(self._lrs[self.steps])
        self.steps += 1
        self.tokens += sum(active) * windows * self._context
        trained = losses.detach()[torch.tensor(active)]
        return float(trained.mean()) if len(trained) else math.nan

    def evaluate(self) -> float:
        """The loss of theta on held-out text."""
        self._scratch.load(self.method.theta())
        with torch.no_grad():
            total = 0.0
            for part in torch.split(self._held_out, EVALUATED, dim=1):
                loss = self.network.losses(self._scratch.params, part)
                total += float(loss) * part.shape[1]
        return total / self._held_out.shape[1]


def method_of(config: LabConfig, stack: Stack) -> Method:
    """The method of a configuration, at the start."""
    method = config.method
    match method.kind:
        case "sync":
            return Sync(config, stack, method)
        case "dgc":
            return Dgc(config, stack, method)
        case "demo":
            return Demo(config, stack, method)
        case "diloco":
            assert config.diloco is not None, "check_lab.outer_is_there"
            kind = Eager if method.eager else Diloco
            return kind(config, stack, method, config.diloco)
        case _:
            assert_never(method)


def run(
    config: LabConfig,
    task: TextTask,
    *,
    write: Callable[[Row], None],
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Outcome:
    """Trains to the end, or until a value is no number.

    Args:
        config: One cell and one seed.
        task: `config.task`.
        write: Gets every row of `metrics.jsonl`.
        progress: Gets each step and its loss.
    """
    engine = Engine(config, task, text.load(task))
    lab, broken = config.lab, False

    def evaluated() -> float:
        loss = engine.evaluate()
        write({**_row(engine, "eval"), "loss": loss})
        return loss

    first = loss = evaluated()
    while engine.steps < lab.steps and not broken:
        rounds = engine.method.rounds
        try:
            now = engine.step()
        except NotFiniteError as fault:
            write({**_row(engine, "stopped"), "why": str(fault)})
            broken = True
            break
        progress(engine.steps, now)
        last = engine.steps == lab.steps
        if engine.steps % lab.log_every == 0 or last:
            write({**_row(engine, "train"), "loss": now})
            if engine.method.rounds != rounds or last:
                write({**_row(engine, "outer"), **engine.method.traffic.row()})
        if engine.steps % lab.eval_every == 0 or last:
            loss = evaluated()
            broken = not math.isfinite(loss)
    diverged = broken or not loss <= first
    return Outcome(
        loss=math.inf if broken else loss, diverged=diverged, steps=engine.steps,
        tokens=engine.tokens, bytes=engine.method.traffic.row(),
    )  # fmt: skip


def _row(engine: Engine, split_name: str) -> Row:
    return {
        "split": split_name, "step": engine.steps, "round": engine.method.rounds,
        "tokens": engine.tokens,
    }  # fmt: skip
