"""One seed a run; whatever draws has a stream of its own, so that cells of one seed are paired."""

import torch

from pww.transport.payload import draw_seed


def generator(seed: int, purpose: str) -> torch.Generator:
    """A stream that no other purpose shares, the same in every cell of this seed."""
    return torch.Generator().manual_seed(seed_of(seed, "stream", purpose) % 2**62)


def seed_of(seed: int, payload: str, tensor: str) -> int:
    """What a codec draws a tensor by, as in a run: another for every payload."""
    return draw_seed(f"{seed} {payload}", tensor)
