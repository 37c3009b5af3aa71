"""The learning rate as a function of how much of the corpus is committed.

A schedule over step counts would be wrong for a replica that joins late or takes more steps.
"""

import math
from typing import assert_never

from pww.config.schema import Optim


def lr_at(progress: float, optim: Optim) -> float:
    """The rate at `progress` (committed / total windows; clamped to [0, 1]).

    Rises linearly from 0 over the first `warmup` of the corpus. Then it is constant; or goes down
    to `min_lr * lr` at the end, as half a cosine over all of the rest, or (wsd: warm up, stay,
    decay) on a line over the last `decay_share` of the corpus.
    """
    p = min(max(progress, 0.0), 1.0)
    if p < optim.warmup:
        return optim.lr * p / optim.warmup
    match optim.decay:
        case "constant":
            return optim.lr
        case "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * _part(p, optim.warmup)))
        case "wsd":
            left = 1.0 - _part(p, 1.0 - optim.decay_share)
        case _:
            assert_never(optim.decay)
    return optim.lr * (optim.min_lr + (1.0 - optim.min_lr) * left)


def _part(p: float, start: float) -> float:
    """How far `p` is from `start` to 1; 0 before, and where there is no way."""
    return max(p - start, 0.0) / (1.0 - start) if start < 1.0 else 0.0


def phase_lrs(progress: float, progress_end: float, num_steps: int, optim: Optim) -> list[float]:
    """One rate a step, at the middle of the step's share of the way to `progress_end`.

    The middle, so that neither the first step of a warm-up nor the last of a decay to 0 is a wasted
    one, and so that cutting a phase in two changes no rate.
    """
    way = progress_end - progress
    return [lr_at(progress + way * (i + 0.5) / num_steps, optim) for i in range(num_steps)]
