"""The lab's speed: workers in one pass against a loop over them, and how long a study takes.

    python tests/bench/lab.py                both figures, about ten minutes
    python tests/bench/lab.py table=false    the first alone, under a minute

`batched_vs_loop`: one training step (loss, gradient, clip, AdamW) of 8 workers of 413 k parameters,
all in one vectorised pass, against a loop over 8 models as one writes it in torch: modules, and
torch's AdamW as it is by default. `…_of_ours`: against the lab's own functions called for one
worker after the other, which a loop without the lab has not (parameters in one row, fused AdamW).
Both on the same cores, turn by turn in one process. A turn is several steps in a row, as a run
makes them; its first, which finds the others' tensors in the caches and its own memory returned,
does not count. The best step of each counts, and the medians are told too.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from figures import figure, machine
from torch import nn
from torch.nn import functional

from pww.config import paths
from pww.config.prepare import LAB, prepare
from pww.lab import app
from pww.lab.charlm import SIZES, initial, losses
from pww.lab.inner import Inner
from pww.lab.stack import Stack, flat, places
from pww.lab.text import VOCABULARY

WORKERS, SIZE, LR = 8, "413k", 1e-3
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
    inner.step(LR, active=[True] * len(tokens))
    return found.detach()


class Layer(nn.Module):
    """A layer of `Gpt`."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(dim, dim, bias=False) for _ in range(4)
        )
        self.up, self.down = (
            nn.Linear(dim, 4 * dim, bias=False),
            nn.Linear(4 * dim, dim, bias=False),
        )
        self.before, self.between = (nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (B, T, D)."""
        y = self.before(x)
        query, key, value = (
            part(y).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.relu(self.up(self.between(x))))


class Gpt(nn.Module):
    """charlm's model for one worker, as one writes it without a thought of others."""

    def __init__(self, theta: torch.Tensor) -> None:
        super().__init__()
        size = SIZES[SIZE]
        self.embed = nn.Embedding(len(VOCABULARY), size.dim)
        self.positions = nn.Parameter(torch.empty(size.context, size.dim))
        self.layers = nn.ModuleList(Layer(size.dim, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.dim, elementwise_affine=False)
        own = {name.removesuffix(".weight"): value for name, value in self.named_parameters()}
        with torch.no_grad():
            for name, columns in places(size.shapes).items():
                value = theta[columns].view(size.shapes[name])
                own[name].copy_(value.T if name.startswith("layers.") else value)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of windows (B, T + 1)."""
        x = self.embed(tokens[:, :-1]) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(self.norm(x), self.embed.weight)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def ordinary(theta: torch.Tensor) -> tuple[Gpt, torch.optim.Optimizer]:
    """A worker of the loop: its model and its optimiser."""
    optim = prepare([], shape=LAB).configs[0].optim
    model = Gpt(theta)
    return model, torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(optim.beta1, optim.beta2),
        weight_decay=optim.weight_decay,
    )  # fmt: skip


def ordinary_step(
    model: Gpt, optimizer: torch.optim.Optimizer, tokens: torch.Tensor
) -> torch.Tensor:
    """Its step; the loss before it."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def turn(step: Callable[[], torch.Tensor], took_s: list[float]) -> None:
    """Adds the seconds of each step but the first."""
    step()
    for _ in range(IN_A_ROW - 1):
        began = time.perf_counter()
        step()
        took_s.append(time.perf_counter() - began)


def batched_vs_loop(windows: int) -> None:
    """Prints the ratio for this many windows a worker."""
    draws = torch.Generator().manual_seed(0)
    theta = flat(initial(SIZES[SIZE], generator=draws))
    length = SIZES[SIZE].context + 1
    tokens = torch.randint(96, (WORKERS, windows, length), generator=draws)
    own = tokens.unbind()
    together = made(WORKERS, theta)
    alone = [made(1, theta) for _ in own]
    plain = [ordinary(theta) for _ in own]

    def batched() -> torch.Tensor:
        return step(*together, tokens)

    def loop() -> torch.Tensor:
        return torch.stack([ordinary_step(*w, t) for w, t in zip(plain, own, strict=True)])

    def loop_of_ours() -> torch.Tensor:
        return torch.cat([step(*w, t[None]) for w, t in zip(alone, own, strict=True)])

    ways = (batched, loop, loop_of_ours)
    losses_of = torch.stack([way() for way in ways])  # at theta: later ones drift by rounding
    took_s: dict[Callable[[], torch.Tensor], list[float]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way in ways:
            turn(way, took_s[way])
    name = "batched_vs_loop" if windows == 1 else f"batched_vs_loop_{windows}_windows"
    for way, suffix in ((loop, ""), (loop_of_ours, "_of_ours")):
        ratio = min(took_s[way]) / min(took_s[batched])
        goal = ">= 2" if windows == 1 and way is loop else "none"
        figure(f"{name}{suffix}", ratio, "times", goal)
        ratio = statistics.median(took_s[way]) / statistics.median(took_s[batched])
        figure(f"{name}{suffix}_median", ratio, "times", "none")
    figure(f"{name}_step", min(took_s[batched]) * 1e3, "ms", "none")
    apart = float((losses_of - losses_of[0]).abs().max())
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
