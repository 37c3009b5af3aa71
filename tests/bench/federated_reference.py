"""What two replicas cost in a plain loop of one process: the reference of `federated.py`.

    python tests/bench/federated_reference.py [replicas=2] [H=8] [seed=0] [windows=8192] [batch=8]
                                              [block=16] [model=WORDS]

The same model, theta(0), text, batches, rates and held-out windows as there, and nothing else of
pww: no central, lease, codec, checkpoint, FSDP or trainer of torchtitan. Each replica has torch's
AdamW; every H steps their weights become their mean (DiLoCo with an outer SGD of rate 1). What two
replicas lose here to one with both batches (replicas=1 batch=16) is no fault of the engine. Windows
come in blocks as a run's do; block=1 is a random sample of them.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from federated import DEFAULTS as BENCH
from federated import corpus as text
from figures import machine
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from pww.config.load import compose
from pww.config.schema import Config
from pww.data.corpus import Corpus, prepare
from pww.lab.model_network import drawn
from pww.trainer.titan_cpu import install, unwarned

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {"replicas": "2", "H": "8", "seed": "0", "windows": BENCH["windows"],
            "batch": BENCH["batch"], "block": "16", "model": BENCH["model"]}  # fmt: skip
HELD_OUT = 128  # windows, as there
SAY_EVERY = 64  # steps


class Replica:
    """fp32 parameters at theta, computed with in bf16, and torch's AdamW."""

    def __init__(self, module: nn.Module, config: Config) -> None:
        self.module, optim = module, config.optim
        assert optim.name == "adamw"
        self.params = {
            name: value.detach().clone().requires_grad_()
            for name, value in module.named_parameters()
        }
        self.clip_norm = optim.clip_norm
        self.adamw = torch.optim.AdamW(
            self.params.values(), lr=optim.lr, betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
        )  # fmt: skip

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy in nats of windows (B, T + 1)."""
        cast = {name: value.bfloat16() for name, value in self.params.items()}
        logits = functional_call(self.module, cast, (tokens[:, :-1],))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def step(self, tokens: torch.Tensor, lr: float) -> None:
        """One inner step."""
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.zero_grad()
        self.loss(tokens).backward()
        nn.utils.clip_grad_norm_(self.params.values(), self.clip_norm)
        self.adamw.step()

    def held_out(self, corpus: Corpus) -> float:
        """The same windows as a run's evaluation."""
        ids = np.arange(HELD_OUT) * corpus.manifest.num_held_out // HELD_OUT
        with torch.no_grad():
            parts = [
                self.loss(torch.from_numpy(corpus.held_out(some))) for some in ids.reshape(-1, 8)
            ]
        return float(torch.stack(parts).mean())


def rate(progress: float, config: Config) -> float:
    """Linear warm-up, then half a cosine down to `min_lr`, by the share of the corpus."""
    optim = config.optim
    if progress < optim.warmup:
        return optim.lr * progress / optim.warmup
    left = 0.5 * (1 + math.cos(math.pi * (progress - optim.warmup) / (1 - optim.warmup)))
    return optim.lr * (optim.min_lr + (1 - optim.min_lr) * left)


def shuffled(num_windows: int, block: int, seed: int) -> np.ndarray:
    """Blocks of consecutive windows in random order, and the windows of each in random order."""
    random = np.random.default_rng(seed)
    blocks = np.arange(num_windows // block * block).reshape(-1, block)
    return random.permuted(random.permutation(blocks), axis=1).reshape(-1)


@torch.no_grad()
def average(replicas: Sequence[Replica]) -> None:
    """Every replica's weights become their mean; AdamW's moments stay each one's own."""
    for name in replicas[0].params:
        mean = torch.stack([one.params[name] for one in replicas]).mean(0)
        for one in replicas:
            one.params[name].copy_(mean)


def main(words: list[str]) -> None:
    """Trains, and prints the held-out loss now and then and at the end."""
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := sorted(set(given) - set(DEFAULTS)):
        sys.exit(f"unknown words {unknown}: there are {sorted(DEFAULTS)}")
    asked = {**DEFAULTS, **given}
    num, inner, seed, batch = (int(asked[key]) for key in ("replicas", "H", "seed", "batch"))
    print(json.dumps({"machine": machine(), **asked}), flush=True)
    config = compose([*text(), *asked["model"].split(","), f"data.max_windows={asked['windows']}"])
    corpus = prepare(
        config.text, seq_len=config.model.seq_len, vocab_multiple=config.model.vocab_multiple,
        project=ROOT,
    )  # fmt: skip
    install("cpu")
    from pww.trainer.titan_model import model_spec

    with unwarned():
        rows = corpus.manifest.padded_vocab
        spec = model_spec(config.model, padded_vocab=rows, gloo=True, seed=seed)
        module = drawn(spec, config.model, seed=seed)
    replicas = [Replica(module, config) for _ in range(num)]
    order = shuffled(corpus.manifest.num_windows, int(asked["block"]), seed)
    steps = len(order) // (num * batch) // inner * inner
    shares = order[: steps * num * batch].reshape(steps // inner, num, inner, batch)
    start = perf_counter()
    first = replicas[0].held_out(corpus)
    print(json.dumps({"step": 0, "held_out": first}), flush=True)
    for phase, of_phase in enumerate(shares):
        for one, windows in zip(replicas, of_phase, strict=True):
            for step, ids in enumerate(windows):  # as a site, which knows of no other's steps
                done = phase * num * inner * batch + (step + 0.5) * batch
                one.step(torch.from_numpy(corpus.windows(ids)), rate(done / len(order), config))
        average(replicas)
        at = (phase + 1) * inner
        if at % SAY_EVERY == 0 or at == steps:
            line = {"step": at, "held_out": replicas[0].held_out(corpus),
                    "seconds": round(perf_counter() - start, 1)}  # fmt: skip
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
