"""What tests of the lab's methods share: an engine on a made-up text, and gradients one by one."""

from functools import cache

import torch

from pww.config.prepare import LAB, prepare
from pww.config.schema.lab import CharLm, LabConfig
from pww.lab import charlm
from pww.lab.engine import Engine
from pww.lab.stack import Stack
from pww.lab.text import Corpus, Piece, encoded

TOY = charlm.SIZES["toy"]
PLAIN = ("optim=sgd", "optim.momentum=0", "optim.weight_decay=0", "optim.warmup=0", "optim.lr=0.1")
"""Plain gradient descent; its clip is far away."""


def corpus() -> Corpus:
    draws = torch.Generator().manual_seed(5)
    letters = torch.randint(97, 123, (40, 200), generator=draws).tolist()
    pieces = tuple(
        Piece(f"author {i % 8}", "".join(map(chr, row)) + " the end. ")
        for i, row in enumerate(letters)
    )
    return Corpus("made", pieces, encoded("what nobody has read, and it goes on. " * 20))


TEXT = corpus()


@cache
def config(words: tuple[str, ...]) -> LabConfig:
    made = prepare(["lab.steps=240", "lab.eval_windows=4", *words], shape=LAB).configs[0]
    assert isinstance(made, LabConfig)
    return made


def engine(*words: str) -> Engine:
    made = config(words)
    assert isinstance(made.task, CharLm)
    return Engine(made, made.task, TEXT)


def after(steps: int, *words: str) -> torch.Tensor:
    """Theta after so many steps."""
    made = engine(*words)
    for _ in range(steps):
        made.step()
    return made.method.theta().clone()


def grads_of(rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Gradients, worker by worker."""
    found = []
    for row, own in zip(rows, tokens, strict=True):
        stack = Stack(TOY.shapes, workers=1)
        stack.load(row)
        stack.backward(charlm.losses(stack.params, own[None], size=TOY))
        found.append(stack.grads[0])
    return torch.stack(found)


def batches(made: Engine, steps: int) -> list[torch.Tensor]:
    """The windows that an engine like this one will draw."""
    return [
        made._streams.draw(
            made._draws, windows=made._config.optim.batch_windows, length=TOY.context + 1
        )
        for _ in range(steps)
    ]


def batches_without_moving(made: Engine, steps: int) -> list[torch.Tensor]:
    state = made._draws.get_state()
    found = batches(made, steps)
    made._draws.set_state(state)
    return found
