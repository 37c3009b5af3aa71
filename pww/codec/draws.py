"""Draws that both sides make alike: a key a row stands in the payload, the rest follows from it.

The key of a row is a function of the seed plus the number of the row. No product leaves int64, so
every device draws the same.
"""

import torch

MASK = 0xFFFFFFFF
COUNTERS = 1 << 48
"""Seeds that differ by a multiple of it draw the same."""


def row_keys(num_rows: int, *, seed: int, device: torch.device) -> torch.Tensor:
    """A column of int32, one key a row."""
    counters = torch.arange(num_rows, device=device) + seed % COUNTERS
    keys = _mixed(_mixed(counters & MASK) ^ (counters % COUNTERS >> 32))
    return (keys - (1 << 31)).to(torch.int32).view(-1, 1)


def drawn(keys: torch.Tensor, lanes: int) -> torch.Tensor:
    """Of each row `lanes` whole numbers from 0 to 2^32 - 1, each as likely as the next."""
    steps = torch.arange(lanes, device=keys.device) * 0x9E3779B1
    return _mixed((keys.long() + (1 << 31) + steps) & MASK)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """32-bit words, each bit of which depends on every bit of the word."""
    for _ in range(2):
        words = ((words >> 16) ^ words) * 0x45D9F3B & MASK
    return (words >> 16) ^ words
