"""The lab's speed: workers in one pass against a loop over them, and how long a study takes.

    python tests/bench/lab.py                both figures, about ten minutes
    python tests/bench/lab.py table=false    the first alone, under a minute

`batched_vs_loop`: one training step (loss, gradient, AdamW) of 8 workers of 413 k parameters, all
in one vectorised pass, against the same functions called for one worker after the other, on the
same cores, turn by turn in one process. A turn is several steps in a row, as a run makes them; its
first, which finds the others' tensors in the caches and its own memory returned, does not count.
The best step of each counts. `…_of_torch`: a loop of torch's own AdamW on separate tensors instead.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from figures import figure, machine

from pww.config import paths
from pww.config.prepare import LAB, prepare
from pww.lab import app
from pww.lab.charlm import SIZES, initial, losses
from pww.lab.inner import Inner
from pww.lab.stack import Stack, flat

WORKERS, SIZE = 8, "413k"
TURNS, IN_A_ROW = 10, 5
CELLS = ("method=local", "codec=fp32,int4,int2,sign,topk")
STEPS, SEEDS = 2000, 3


def made(workers: int, theta: torch.Tensor) -> tuple[Stack, Inner]:
    """Workers at theta, and their optimiser."""
    stack = Stack(SIZES[SIZE].shapes, workers=workers)
    stack.load(theta)
    config = prepare([], shape=LAB).configs[0]
    return stack, Inner(config.optim, stack.values, stack.grads)


def step(stack: Stack, inner: Inner, tokens: torch.Tensor) -> torch.Tensor:
    """One step of all of a stack's workers; their losses before it."""
    found = losses(stack.params, tokens, size=SIZES[SIZE])
    stack.backward(found)
    inner.step(1e-3, active=[True] * len(tokens))
    return found.detach()


def ordinary(theta: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    """One worker as one writes it without a thought of others: tensors and torch's AdamW."""
    stack = Stack(SIZES[SIZE].shapes, workers=1)
    stack.load(theta)
    params = {name: p.detach().clone().requires_grad_() for name, p in stack.params.items()}
    return params, torch.optim.AdamW(params.values(), lr=1e-3, betas=(0.9, 0.95))


def ordinary_step(
    params: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, tokens: torch.Tensor
) -> torch.Tensor:
    """Its step."""
    optimizer.zero_grad()
    loss = losses(params, tokens, size=SIZES[SIZE])
    loss.sum().backward()
    torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
    optimizer.step()
    return loss.detach()


def turn(step: Callable[[], torch.Tensor], took_s: list[float]) -> torch.Tensor:
    """Adds the seconds of each step but the first; the losses before the last."""
    step()
    for _ in range(IN_A_ROW - 1):
        began = time.perf_counter()
        found = step()
        took_s.append(time.perf_counter() - began)
    return found


def batched_vs_loop(windows: int) -> None:
    """Prints the ratio for this many windows a worker."""
    draws = torch.Generator().manual_seed(0)
    theta = flat(initial(SIZES[SIZE], generator=draws))
    length = SIZES[SIZE].context + 1
    tokens = torch.randint(96, (WORKERS, windows, length), generator=draws)
    own = torch.split(tokens, 1)
    together = made(WORKERS, theta)
    alone = [made(1, theta) for _ in own]
    plain = [ordinary(theta) for _ in own]

    def in_a_loop() -> torch.Tensor:
        return torch.cat([step(*w, t) for w, t in zip(alone, own, strict=True)])

    def as_usual() -> torch.Tensor:
        return torch.cat([ordinary_step(*w, t) for w, t in zip(plain, own, strict=True)])

    batched: list[float] = []
    loop: list[float] = []
    usual: list[float] = []
    apart = 0.0
    for _ in range(TURNS):
        one = turn(lambda: step(*together, tokens), batched)
        other = turn(in_a_loop, loop)
        turn(as_usual, usual)
        apart = max(apart, float((one - other).abs().max()))
    ratio = min(loop) / min(batched)
    name = "batched_vs_loop" if windows == 1 else f"batched_vs_loop_{windows}_windows"
    figure(name, ratio, "times", ">= 2" if windows == 1 else "none")
    figure(f"{name}_median", statistics.median(loop) / statistics.median(batched), "times", "none")
    figure(f"{name}_of_torch", min(usual) / min(batched), "times", "none")
    figure(f"{name}_step", min(batched) * 1e3, "ms", "none")
    figure(f"{name}_losses_apart", apart, "nats", "<= 1e-5")


def table() -> None:
    """Prints how long three seeds of five codecs take on the toy."""
    with tempfile.TemporaryDirectory() as folder:
        paths.PROJECT = Path(folder)
        began = time.perf_counter()
        code = app.start(
            [
                "lab.study=bench",
                f"lab.steps={STEPS}",
                f"lab.seeds={SEEDS}",
                *CELLS,
                f"hydra.sweep.dir={folder}/sweeps",
                "-m",
            ]
        )
        took_s = time.perf_counter() - began
    assert code == 0, code
    figure("codec_table", took_s / 60, "minutes", "< 10")


if __name__ == "__main__":
    print(machine(), file=sys.stderr)
    torch.set_num_threads(2)
    for count in (1, 4):
        batched_vs_loop(count)
    if "table=false" not in sys.argv[1:]:
        table()
