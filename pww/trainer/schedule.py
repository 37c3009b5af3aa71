"""The learning rate as a function of how much of the corpus is committed.

A schedule over step counts would be wrong for a replica that joins late or takes more steps.
"""

import math

from pww.config.schema import Optim


def lr_at(progress: float, optim: Optim) -> float:
    """The rate at `progress` (committed / total windows; clamped to [0, 1]).

    Rises linearly from 0 over the first `warmup` of the corpus; then constant, or half a cosine
    down to `min_lr * lr` at the end.
    """
    p = min(max(progress, 0.0), 1.0)
    if p < optim.warmup:
        return optim.lr * p / optim.warmup
    if optim.decay == "constant":
        return optim.lr
    rest = 1.0 - optim.warmup
    t = (p - optim.warmup) / rest if rest > 0 else 0.0
    return optim.lr * (optim.min_lr + (1.0 - optim.min_lr) * 0.5 * (1.0 + math.cos(math.pi * t)))


def phase_lrs(progress: float, progress_end: float, num_steps: int, optim: Optim) -> list[float]:
    """One rate a step, at the middle of the step's share of the way to `progress_end`.

    The middle, so that neither the first step of a warm-up nor the last of a decay to 0 is a wasted
    one, and so that cutting a phase in two changes no rate.
    """
    way = progress_end - progress
    return [lr_at(progress + way * (i + 0.5) / num_steps, optim) for i in range(num_steps)]
