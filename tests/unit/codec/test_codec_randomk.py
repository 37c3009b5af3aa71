"""Drawn values: each place as likely as the next, unbiased, variance as in the closed form."""

import math

import torch

from pww.codec import codec_named

BLOCKS = 1024


def decoded(name, seed=0):
    """One block, drawn from `BLOCKS` times; and that block."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1)).abs_().add_(0.1)
    codec, shape = codec_named(name), (BLOCKS * 4096,)
    back = codec.decode(codec.encode(x.repeat(BLOCKS), seed=seed), shape)
    return back.view(BLOCKS, 4096), x


def test_every_place_is_as_likely_as_the_next():
    back, _ = decoded("randomk-64")
    drawn = (back != 0).float()
    assert torch.equal(drawn.view(BLOCKS, 64, 64).sum(2), torch.ones(BLOCKS, 64))
    expected = BLOCKS / 64
    chi2 = float(((drawn.sum(0) - expected) ** 2 / expected).sum())
    freedom = 64 * 63
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_neighbours_draw_independently():
    """Blocks, stretches and seeds that follow each other: equal in one of 64, and no more."""
    at = {seed: decoded("randomk-64", seed)[0].view(-1, 64, 64).argmax(2) for seed in (0, 1 << 32)}
    for one, two in (
        (at[0][1:], at[0][:-1]), (at[0][:, 1:], at[0][:, :-1]), (at[0], at[1 << 32]),
    ):  # fmt: skip
        n = one.numel()
        share = float((one == two).float().mean())
        assert abs(share - 1 / 64) < 5 * math.sqrt(1 / 64 / n)


def test_the_mean_over_draws_is_the_tensor():
    for name, factor in (("randomk-64", 1.0), ("randomk-64-raw", 1 / 64), ("randomk-100", 1.0)):
        back, x = decoded(name)
        deviation = math.sqrt(63 / BLOCKS) * factor  # of the mean, over the value
        z = (back.double().mean(0) / x.double() - factor) / deviation
        assert float(z.abs().max()) < 6, name
        assert abs(float(z.mean())) < 5 / 64, name


def test_the_variance_is_omega_times_the_square():
    for keep in (64, 256):
        back, x = decoded(f"randomk-{keep}")
        omega = 4096 / keep - 1
        lost = float(((back - x).double() ** 2).mean())
        square = float((x.double() ** 2).mean())
        # a sum of BLOCKS * keep independent draws
        assert abs(lost / square / omega - 1) < 5 * 2 / math.sqrt(BLOCKS * keep)


def test_what_is_sent_is_the_value_itself():
    x = torch.randn(4096 + 100)
    parts = codec_named("randomk-64").encode(x, seed=5)
    assert set(parts["values"].tolist()) <= set(x.tolist())
    assert parts["values"].numel() == 64 + 2


def test_seeds_count_blocks():
    x = torch.randn(8 * 4096)
    codec = codec_named("randomk-16")
    for seed in (0, (1 << 32) - 3, (1 << 48) - 2, (1 << 64) - 5):
        whole = codec.encode(x, seed=seed)["keys"]
        assert torch.equal(codec.encode(x[3 * 4096 :], seed=seed + 3)["keys"], whole[3:])
        assert len(set(whole.tolist())) == 8
